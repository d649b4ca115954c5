# SPDX-License-Identifier: Apache-2.0

import json
import re
import sys

import pytest
from helpers.cli_utils import write_config
from helpers.launch import run_program

from trl_nlac.cli.launch import launch_command
from trl_nlac.cli.main import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def preflight(folder, *words, **options) -> int:
    rooms = {"environment_factory": "trl_nlac.environments.embedded:demo_environment"}
    rooms |= {"environment_kwargs": {"world": "rooms", "seed": 0}, "dataset_name": "trl_nlac/recipes/rooms.jsonl"}
    rooms |= {"prompts": "trl_nlac/tiny_model/nlac_prompts.json", "eval_strategy": "no", "max_steps": 40}
    rooms["num_updates_per_generation"] = 1
    sizes = {"samples_per_iteration": 16, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    write_config(folder, **{**rooms, **sizes, "episodes_per_iteration": 2, **options})
    return main(["preflight", "--config", "run.yaml", "--num_episodes", "6", *words])


def test_one_iteration_and_nothing_is_left(folder, capsys):
    assert preflight(folder, "--json", "found.json") == 0
    printed = capsys.readouterr().out
    assert "Playing 6 episodes" in printed and re.search(r"the run takes 0:0\d:\d\d", printed)
    assert "'loss'" not in printed
    report = json.loads((folder / "found.json").read_text())
    names = {check["name"] for check in report["checks"]}
    assert {"policy/format_rate", "health/refine_compliance", "refined/success_rate"} <= names
    assert report["metrics"]["environment/steps"] > 0 and report["metrics"]["critic/loss"] > 0
    assert report["hours"] == pytest.approx(report["seconds_per_iteration"] * 20 / 3600)
    assert report["success"].keys() == {"plain", "refined"}
    assert sorted(path.name for path in folder.iterdir()) == ["found.json", "run.yaml"]


def test_a_run_that_cannot_learn(folder, capsys):
    assert preflight(folder, max_completion_length=4) == 2
    captured = capsys.readouterr()
    assert "checks are a no-go" in captured.err
    assert "completions/clipped_ratio: Answers are cut off. Raise `max_completion_length`." in captured.out


@pytest.mark.parametrize(
    "options",
    [
        {"logging_strategy": "no"},
        {"log_completions": True},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 5},
    ],
    ids=str,
)
def test_options_that_one_iteration_cannot_have(folder, capsys, options):
    words = ["--eval_dataset_name", "trl_nlac/recipes/rooms.jsonl"] if "eval_steps" in options else []
    assert preflight(folder, *words, "--json", "found.json", max_completion_length=4, **options) == 2
    assert json.loads((folder / "found.json").read_text())["metrics"]["completions/clipped_ratio"] > 0


def test_an_environment_that_always_fails(folder, capsys):
    source = "def make():\n    return Broken()\n\n\n"
    source += "class Broken:\n    def reset(self, **task):\n        return 'go'\n\n"
    source += "    def step(self, action):\n        raise ConnectionError('the shop is shut')\n"
    (folder / "broken.py").write_text(source)
    assert preflight(folder, environment_factory="broken.py:make", environment_kwargs=None) == 2
    error = capsys.readouterr().err
    assert "The environment failed in all of 6 episodes" in error and "the shop is shut" in error
    assert not (folder / "broken.py.preflight").exists()


def test_a_success_that_was_measured_elsewhere(folder, capsys):
    assert preflight(folder, "--expected_success", "1.0") == 2
    assert "Tasks, prompts, lengths or sampling differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num_episodes", "-1"], "--num_episodes must be at least 0, got -1."),
        (["--expected_success", "30"], "--expected_success 30 is a share from 0 to 1"),
        (["--expected_success", "0.3", "--num_episodes", "0"], "needs --num_episodes above 0, got 0"),
        (["--max_turn", "3"], "did you mean '--max_turns'?"),
    ],
)
def test_wrong_arguments(folder, capsys, words, message):
    assert preflight(folder, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_in_several_processes(folder):
    assert preflight(folder, "--num_episodes", "0") == 0  # writes the configuration
    words = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "trl_nlac", "preflight"]
    printed = run_program("-m", *words, "--config", "run.yaml", "--num_episodes", "5")
    assert printed.count("Playing 5 episodes") == printed.count("The first iteration took") == 1
    assert [path.name for path in folder.iterdir()] == ["run.yaml"]


def test_processes_are_launched_with_its_own_arguments():
    words = ["--accelerate_config", "zero3", "--num_processes", "2", "--config", "paper"]
    command = launch_command(words, ["preflight", "--num_episodes", "8"])
    own = "trl_nlac preflight --num_episodes 8 --config paper".split()
    assert command[0] == sys.executable and command[-6:] == own
