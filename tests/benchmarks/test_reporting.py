# SPDX-License-Identifier: Apache-2.0

"""What all benchmarks record."""

import subprocess

from benchmarks import reporting


def test_a_commit_is_named_and_so_are_changes_since(tmp_path, monkeypatch):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        return subprocess.check_output(["git", *identity, *words], cwd=tmp_path, text=True)

    assert reporting.commit(tmp_path) is None
    git("init")
    (tmp_path / "method.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "One")
    (tmp_path / "result.json").write_text("{}")
    one = git("rev-parse", "HEAD").strip()
    assert reporting.commit(tmp_path) == one
    (tmp_path / "method.py").write_text("2")
    assert reporting.commit(tmp_path) == f"{one}+"
    monkeypatch.setenv("PATH", "")
    assert reporting.commit(tmp_path) is None
