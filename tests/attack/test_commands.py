# SPDX-License-Identifier: Apache-2.0

"""Columns of a task that become words of a command, and waits without end."""

import json
import sys

import pytest
from helpers.testing_utils import make_trainer

from trl_nlac.episodes.text_environment import EnvironmentFailure
from trl_nlac.event_loop import finish
from trl_nlac.gateway.environment import _run_command


def words_of(command, task, tmp_path):
    program = f"import json, sys; open({str(tmp_path / 'words')!r}, 'w').write(json.dumps(sys.argv[1:])); print(1)"
    finish(_run_command([sys.executable, "-c", program, *command], task, "http://127.0.0.1:1", "key"))
    return json.loads((tmp_path / "words").read_text())


@pytest.mark.parametrize("text", ["--output=/etc/passwd", "-rf", "-", "--", "-5", -5, "-\n"])
@pytest.mark.parametrize("word", ["{task}", "{none}{task}", "{task}.txt"])
def test_a_column_does_not_become_an_option(tmp_path, word, text):
    task = {"task": text, "none": ""}
    filled = word.replace("{task}", str(text)).replace("{none}", "")
    with pytest.raises(EnvironmentFailure, match=r"can be taken for an option\. Put `--` before it, write it as `--n"):
        words_of([word], task, tmp_path)
    assert not (tmp_path / "words").exists()
    assert words_of(["--", word], task, tmp_path) == ["--", filled]
    assert words_of([f"--task={word}"], task, tmp_path) == [f"--task={filled}"]


def test_a_column_cannot_be_the_mark_itself(tmp_path):
    with pytest.raises(EnvironmentFailure, match="can be taken for an option"):
        words_of(["{mark}", "{task}"], {"mark": "--", "task": "-rf"}, tmp_path)


def test_other_words_stay(tmp_path):
    task = {"task": "a -b; rm -rf $HOME `id`", "number": 5}
    command = ["-v", "{task}", "{number}", "{missing}", "-n{number}"]
    assert words_of(command, task, tmp_path) == ["-v", task["task"], "5", "{missing}", "-n5"]


def test_no_timeout_is_warned_of(tmp_path, caplog):
    make_trainer(tmp_path, {"environment_timeout": None})
    assert "`environment_timeout=None`: one environment, agent or server that hangs holds the run up" in caplog.text
    caplog.clear()
    make_trainer(tmp_path)
    assert "environment_timeout" not in caplog.text
