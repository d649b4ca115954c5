# SPDX-License-Identifier: Apache-2.0

import shlex
from pathlib import Path

import pytest

from trl_nlac.cli.init import FILES
from trl_nlac.cli.main import main
from trl_nlac.environments.embedded import TINY_MODEL


# In place of the model on the Hub.
TINY = ["--model_name_or_path", TINY_MODEL, "--max_steps", "2", "--per_device_train_batch_size", "2"]
TINY += ["--logging_steps", "1", "--max_completion_length", "16", "--examples", "given"]


def test_what_is_printed_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "first try"]) == 0
    printed = capsys.readouterr().out
    assert "add --use_cpu --bf16 False" in printed
    folder, train, report = [shlex.split(line) for line in printed.splitlines() if line.startswith(("cd", "trl-nlac"))]
    assert folder == ["cd", "first try"] and sorted(FILES) == sorted(path.name for path in Path("first try").iterdir())
    monkeypatch.chdir(folder[1])
    assert main([*train[1:], "--use_cpu", "--bf16", "False", *TINY]) == 0, capsys.readouterr().err
    assert main(report[1:]) == 0 and Path("runs/first/report.html").is_file()
    assert Path("runs/first/model.safetensors").is_file()


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_overwritten(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my-task").mkdir()
    Path("my-task", name).write_text("mine")
    assert main(["init"]) == 2
    assert f"'my-task' has {name} already. Name another folder." in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in Path("my-task").iterdir()] == [(name, "mine")]
    assert main(["init", f"my-task/{name}"]) == 2 and "is a file. Name a folder." in capsys.readouterr().err
