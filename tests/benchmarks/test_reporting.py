# SPDX-License-Identifier: Apache-2.0

import subprocess

import pytest

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


def test_only_the_text_between_the_marks_of_a_script_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    start, end = "<!-- results of benchmarks/one.py -->", "<!-- end of results -->"
    page.write_text(f"before\n{start}\nold\n{end}\nafter\n")
    table = reporting.table(["a", "b"], [["1", "2"]])
    for _ in range(2):
        reporting.insert(table, page, "one.py")
    assert page.read_text() == f"before\n{start}\n{table}\n{end}\nafter\n"
    with pytest.raises(ValueError, match="page.md has no lines .*two.py"):
        reporting.insert(table, page, "two.py")
