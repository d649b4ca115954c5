# SPDX-License-Identifier: Apache-2.0

import json
import math
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from datasets import Dataset, load_dataset
from helpers.cli_utils import write_config
from helpers.launch import run_program
from helpers.testing_utils import make_trained

from trl_nlac import NLACAgent, PrioritizedReplay
from trl_nlac.cli.errors import CommandError
from trl_nlac.cli.main import COMMANDS, main
from trl_nlac.cli.options import load_environment, load_environments, load_object, load_player, load_rows
from trl_nlac.cli.origin import fill_from_run, note_origin, origin_flags
from trl_nlac.cli.parser import Parser
from trl_nlac.cli.parsers import add_agent_arguments, play_parser
from trl_nlac.cli.play import _take_untrained
from trl_nlac.cli.train import find_checkpoint
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.options.environment_options import EnvironmentOptions
from trl_nlac.report.shown_notes import read_settings
from trl_nlac.written_files import write_json


ENVIRONMENT = """
from trl_nlac.environments import StepResult


class GuessTheNumber:
    def __init__(self, limit=100):
        self.limit = limit

    def reset(self, number):
        self.number = number
        return f"Guess a number from 1 to {self.limit}. Your action is the number alone."

    def step(self, action):
        if not action.isdecimal():
            return StepResult("[bold]That is no number.[/bold]")
        return StepResult("Right!", reward=1.0, terminated=True)


class Counter:
    def reset(self, **row):
        return "zero"

    def add(self):
        "Add one."
        return "one"

    def get_reward(self):
        return 1.0


def pay(completions, log_extra, **kwargs):
    log_extra("length", [len(completion) for completion in completions])
    return [0.25] * len(completions)


broken = 3
"""
GUESS = ["--environment_factory", "guess.py:GuessTheNumber"]
OPTIONS = dict(
    environment_factory="guess.py:GuessTheNumber",
    environment_kwargs={"limit": 7},
    reward_funcs=["guess.py:pay"],
    eval_dataset_name="held_out.csv",
    success_threshold=0.25,
    num_completions_to_print=1,
)


def test_the_checkpoint_of_a_yaml_file(tmp_path):
    """There `true` is no text; on a command line it is."""
    (tmp_path / "checkpoint-7").mkdir()
    for value, expected in [(None, None), (False, None), (True, "checkpoint-7"), ("True", "checkpoint-7")]:
        args = SimpleNamespace(output_dir=str(tmp_path), resume_from_checkpoint=value)
        assert find_checkpoint(args) == (expected and str(tmp_path / expected)), value


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "guess.py").write_text(ENVIRONMENT)
    (tmp_path / "tasks.jsonl").write_text('{"number": 3}\n{"number": 5}\n')
    (tmp_path / "held_out.csv").write_text("number\n1\n2\n6\n")
    write_config(tmp_path, **OPTIONS)
    return tmp_path


class TestTrain:
    def test_from_a_file_to_playing(self, folder, capsys):
        assert main(["train", "--config", "run.yaml", "--learning_rate", "1e-4"]) == 0
        printed = capsys.readouterr().out
        assert "What was learned" in printed and "only evaluation" in printed
        assert f"trl-nlac report {folder}/run" in printed
        (play,) = (line.strip() for line in printed.splitlines() if "trl-nlac play" in line)
        assert play == (
            f"trl-nlac play {folder}/run --environment_factory {folder}/guess.py:GuessTheNumber "
            f"--environment_kwargs '{{\"limit\": 7}}' --reward_funcs {folder}/guess.py:pay"
        )
        noted = json.loads((folder / "run" / "_nlac_run.json").read_text())
        assert noted["dataset_name"] == "_nlac_tasks.csv" and noted["environment_kwargs"] == {"limit": 7}
        assert json.loads((folder / "run" / "nlac_roles.json").read_text())["max_turns"] == 2
        lines = [json.loads(line) for line in (folder / "run" / "training_log.jsonl").read_text().splitlines()]
        assert lines[0]["episode/return"] >= 0.25 and lines[0]["learning_rate"] < 1e-4

        assert main(["evaluate", "run", "--num_episodes", "2", "--json", "metrics.json", "--trust_remote_code"]) == 0
        printed = capsys.readouterr().out
        assert "Importing guess.py:GuessTheNumber, guess.py:pay, as run/_nlac_run.json says." in printed
        assert "3 tasks, 2 episodes each" in printed
        metrics = json.loads((folder / "metrics.json").read_text())
        # As in training: the reward function gives the rewards.
        assert metrics["episode/return"] >= 0.25 and metrics["episode/pass^2"] == 1.0

        assert main([*shlex.split(play)[1:], "--row", "1", "--refine", "1", "--auto"]) == 0
        printed = capsys.readouterr().out
        assert '{"number": 2}' in printed and "from 1 to 7" in printed and "turn 2" in printed
        assert "[bold]That is no number.[/bold]" in printed and "truncated after 2 turns, return 0.25" in printed

        assert main([*shlex.split(play)[1:], "--before", "--auto"]) == 0
        assert "after 2 turns" in capsys.readouterr().out
        args = play_parser().parse_args(["run", "--before"])
        _take_untrained(args)
        assert args.model == read_settings(folder / "run").model and "max_turns=2" in args.option

        assert main(["train", "--config", "run.yaml", "--max_steps", "4", "--resume_from_checkpoint", "last"]) == 0
        lines = [json.loads(line) for line in (folder / "run" / "training_log.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if "loss" in line] == [2, 4]
        for path in (folder / "run").glob("model*.safetensors"):  # as a run that was stopped
            path.unlink()
        (folder / "run" / "config.json").unlink()
        assert main(["play", "run", "--trust_remote_code"]) == 2
        assert "Its newest checkpoint is one: run/checkpoint-4." in capsys.readouterr().err
        assert main([*shlex.split(play.replace("/run ", "/run/checkpoint-4 "))[1:], "--auto"]) == 0
        assert '{"number": 1}' in capsys.readouterr().out  # a task of the run

    def test_a_used_folder(self, folder, capsys, monkeypatch):
        assert main(["train", "--config", "run.yaml", "--eval_strategy", "no"]) == 0
        before = {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()}
        assert main(["train", "--config", "run.yaml", "--max_steps", "1", "--environment_kwargs", "{}"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        started = f"--output_dir '{folder / 'run'}' has a run already, see checkpoint-2: resume it (--resume_from_"
        assert started in error
        for words in (["--max_steps", "1"], []):
            assert main(["train", "--config", "run.yaml", "--resume_from_checkpoint", "last", *words]) == 0
        assert {path: path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()} == before
        (folder / "run" / "model.safetensors").write_bytes(b"half")  # as a kill can leave it
        assert main(["train", "--config", "run.yaml", "--resume_from_checkpoint", "last"]) == 0
        assert (folder / "run" / "model.safetensors").read_bytes() == before[folder / "run" / "model.safetensors"]
        (folder / "run" / "checkpoint-2" / "optimizer.pt").unlink()
        assert main(["train", "--config", "run.yaml", "--resume_from_checkpoint", "last"]) == 2
        assert "optimizer.pt (missing)" in capsys.readouterr().err.splitlines()[-1]

        moved = folder / "elsewhere"
        (folder / "run").rename(moved)
        (folder / "held_out.csv").unlink()
        (folder / "sub").mkdir()
        monkeypatch.chdir(folder / "sub")
        evaluate = ["evaluate", str(moved), "--trust_remote_code"]
        assert main([*evaluate, "--num_episodes", "1"]) == 0
        assert "3 tasks" in capsys.readouterr().out
        (moved / "_nlac_tasks.csv").unlink()
        assert main(evaluate) == 2
        assert "_nlac_tasks.csv, do not exist" in capsys.readouterr().err
        (folder / "guess.py").unlink()
        assert main(evaluate) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert "guess.py, which the run in" in error and "--environment_factory" in error

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--learning_rat", "1"], "there is no option '--learning_rat', did you mean '--learning_rate'?"),
            (["--config", "nothing.yaml"], "--config nothing.yaml: there is no such file"),
            (["--dataset_name", "nothing.jsonl"], "there is no file nothing.jsonl."),
            (["--environment_factory", "guess.py:GuessTheNumbr"], "'GuessTheNumbr', did you mean 'GuessTheNumber'?"),
            (["--environment_factory", "nothing.py:Guess"], "No such file or directory"),
            (["--environment_factory", "no_module:Guess"], "No module named 'no_module'"),
            (["--environment_factory", "guess"], "must be written `module:Name`"),
            (["--environment_factory", "guess.py:broken"], "is 3, which is not a class or function."),
            (["--environment_factory", "guess.py:pay", "guess.py:GuessTheNumber"], "need names of their own"),
            (["--environment_kwargs", "{limit}"], "is not JSON"),
            (["--environment_kwargs", '{"size": 3}'], "unexpected keyword argument 'size'"),
            (["--max_turns", "many"], "invalid int value: 'many'"),
            (["--max_turns", "0"], "--max_turns must be between 1 and 100,000, got 0."),
            (["--model_name_or_path", "no/such-model"], "--model_name_or_path no/such-model: "),
            (["--prompts", "guess.py"], "guess.py"),
            (["--resume_from_checkpoint", "run/checkpoint-7"], "run/checkpoint-7 is not a folder: name a checkpoint"),
            (["--eval_dataset_name", ""], "needs tasks: add --eval_dataset_name or --dataset_test_split."),
        ],
    )
    def test_wrong_arguments_give_one_line(self, folder, capsys, words, message):
        config = [] if "--config" in words else ["--config", "run.yaml"]
        assert main(["train", *config, *words]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("trl-nlac train: error: ") and message in error
        assert not (folder / "run").exists()

    def test_missing_options(self, folder, capsys):
        (folder / "run.yaml").write_text("output_dir: run\nuse_cpu: true\nbf16: false\n")
        environment = ["--environment_factory", "guess.py:pay"]
        for words, missing in (([], environment[0]), (environment, "--model_name_or_path")):
            assert main(["train", "--config", "run.yaml", *words]) == 2
            assert f"error: {missing} is missing" in capsys.readouterr().err

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("launcher", "num_processes"),
        [
            (["trl_nlac", "train", "--accelerate_config", "cpu"], 1),
            (["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "trl_nlac", "train"], 2),
        ],
    )
    def test_launchers(self, folder, launcher, num_processes):
        numbers = ["--episodes_per_iteration", "4", "--samples_per_iteration", "16"]
        printed = run_program("-m", *launcher, "--config", "run.yaml", *numbers)
        assert printed.count("What was learned") == 1
        assert len(list((folder / "run" / "_audit").iterdir())) == num_processes


MORE = """
from trl_nlac.environments import StepResult

import neighbour


class Twice:
    # Can be reset once with a task of training, and once with one of evaluation.

    times = 0

    def reset(self, **row):
        Twice.times += 1
        if Twice.times > 2:
            raise ConnectionError("no line")
        return neighbour.GREETING

    def step(self, action):
        return StepResult("")


"""


class TestErrors:
    """Every mistake gives one line, before the model is loaded if it can be seen by then."""

    def fail(self, capsys, *words) -> str:
        assert main(["train", "--config", "run.yaml", *words]) == 2
        before, start, line = capsys.readouterr().err.rpartition("trl-nlac train: error: ")
        assert not before.rpartition("\n")[2]  # such as a progress bar
        assert start and "Traceback" not in before and line.count("\n") == 1
        return start + line.strip()

    @pytest.fixture
    def more(self, folder):
        (folder / "sub").mkdir()
        (folder / "sub" / "more.py").write_text(MORE)
        (folder / "sub" / "neighbour.py").write_text("GREETING = 'hello'")
        return folder

    def test_reset_is_tried_on_one_row(self, more, capsys, monkeypatch):
        monkeypatch.setattr("trl_nlac.cli.train.NLACTrainer", None)  # it does not come to that
        (more / "tasks.jsonl").write_text('{"number": 3, "colour": "red"}')
        error = self.fail(capsys)
        assert "the environment cannot be reset with the columns number, colour: TypeError: " in error
        assert "got an unexpected keyword argument 'colour'" in error
        (more / "tasks.jsonl").write_text('{"number": 3}')
        (more / "held_out.csv").write_text("size\n1")
        assert "with the columns size: TypeError" in self.fail(capsys)

    def test_every_environment_that_a_row_names(self, more, capsys):
        (more / "tasks.jsonl").write_text('{"number": 3, "environment": "a"}\n{"number": 5, "environment": "b"}\n')
        words = ["--environment_factory", "a=guess.py:GuessTheNumber", "c=guess.py:GuessTheNumber"]
        error = self.fail(capsys, *words, "--eval_strategy", "no", "--eval_dataset_name", "")
        assert "The column `environment` of a task is 'b'; --environment_factory has ['a', 'c']" in error

    def test_no_tasks(self, folder, capsys):
        write_config(folder, **OPTIONS, dataset_name=None, max_steps=None)
        error = self.fail(capsys)
        assert "--dataset_name is missing: name the tasks. If the environment has its own, set --max_steps." in error

    def test_a_machine_without_a_gpu_hides_no_mistake(self, folder, capsys):
        if torch.accelerator.is_available():
            pytest.skip("this machine has an accelerator")
        write_config(folder, **OPTIONS, use_cpu=None, bf16=None)
        for words, message in [
            (["--max_turns", "0"], "--max_turns must be between 1 and 100,000"),
            (["--eval_dataset_name", "tasks.jsonl", "--environment_kwargs", '{"size": 3}'], "argument 'size'"),
            (["--model_name_or_path", "./nothing"], "there is no such folder"),
            ([], "On the CPU: --use_cpu --bf16 False."),
        ]:
            assert message in self.fail(capsys, *words)

    def test_known_errors_during_training(self, more, capsys):
        words = ["--environment_factory", "sub/more.py:Twice", "--environment_kwargs", "{}", "--eval_strategy", "no"]
        error = self.fail(capsys, *words)
        assert "None of 4 episodes had a single turn" in error and "reset: ConnectionError: no line. Check" in error
        assert main(["train", "--config", "run.yaml", *words, "--output_dir", "other", "--debug"]) == 2
        traceback, _, line = capsys.readouterr().err.rpartition("trl-nlac train: error: ")
        assert "Traceback (most recent call last):" in traceback and line.startswith("None of ")
        words += ["--episodes_per_iteration", "100", "--output_dir", "third"]
        error = self.fail(capsys, *words)
        assert "--max_environment_failure_rate is 0.5. The last failure" in error
        assert error.endswith("The last failure on this process: ConnectionError: no line")

    def test_defects_keep_their_traceback(self, folder, capsys, monkeypatch):
        monkeypatch.setattr("trl_nlac.cli.train.NLACTrainer.train", Mock(side_effect=KeyError("nothing")))
        assert main(["train", "--config", "run.yaml"]) == 1
        printed = capsys.readouterr().err
        assert "Traceback" in printed and printed.rstrip().endswith("KeyError: 'nothing'")

    def test_debug_of_transformers(self, folder, capsys):
        assert "--max_turns" in self.fail(capsys, "--debug", "underflow_overflow", "--max_turns", "0")

    def test_memory(self, folder, capsys, monkeypatch):
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has ...\nMore.")
        monkeypatch.setattr("trl_nlac.cli.train.NLACTrainer.train", Mock(side_effect=error))
        assert "CUDA out of memory. Lower --per_device_train_batch_size" in self.fail(capsys)

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["evaluate", "./nowhere"], "./nowhere: there is no such folder."),
            (["play", "no/where/at/all"], "no/where/at/all: there is no such folder."),
            (["report", "nowhere"], "nowhere, and there is no such folder."),
            (["buffer", "stats", "nowhere"], "there is no folder nowhere."),
            (["serve", TINY_MODEL, "--refine", "-1"], "--refine must be from 0 to 64, got -1."),
            (["evaluate", TINY_MODEL, "--max_tasks", "0"], "--max_tasks must be at least 1, got 0."),
            (["evaluate", TINY_MODEL, *GUESS, "--option", "foo=1"], "`foo` is not an option"),
            (["play", TINY_MODEL], "has no _nlac_run.json that names an environment: add --environment_factory"),
            (["play", TINY_MODEL, *GUESS, "--option", "learning_rate=1"], "`learning_rate` is not an option"),
            (["play", TINY_MODEL, *GUESS, "--option", "top_k"], "must be written name=value"),
            (["play", TINY_MODEL, *GUESS, "--dataset_name", "tasks.jsonl", "--row", "2"], "has 2 rows"),
            (["play", TINY_MODEL, "--refin", "1"], "there is no option '--refin', did you mean '--refine'?"),
            (
                ["buffer", "import", "tasks.jsonl", "--model", "nowhere", "--check"],
                "--model nowhere: there is no such folder, and the Hub cannot be asked for a model of this name "
                "(HF_HUB_OFFLINE is set).",
            ),
            (
                ["buffer", "import", "me/logs", "--model", TINY_MODEL, "--check"],
                "me/logs: there is no such file or folder, and the Hub cannot be asked for a dataset of this name "
                "(HF_HUB_OFFLINE is set). Its cache has none.",
            ),
        ],
    )
    def test_what_is_missing_or_out_of_range_is_named(self, folder, capsys, words, message):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "tasks2.jsonl: the file is empty."),
        ('{"number": 3}\n{"number": \n', "tasks2.jsonl: it cannot be read: "),
        ('{"z": 1}\n', "not one of 1 episodes could be played and scored. The last failure:"),
    ],
)
def test_evaluations_of_tasks_that_are_none(folder, capsys, content, message):
    (folder / "tasks2.jsonl").write_text(content)
    words = [*GUESS, "--dataset_name", "tasks2.jsonl"]
    short = ["action_format=text", "max_completion_length=8"]
    assert main(["evaluate", TINY_MODEL, *words, "--num_critiques", "0", "--option", *short]) == 2
    assert message in capsys.readouterr().err


def test_objects_of_modules_that_import_lazily():
    assert load_object("trl.rewards:think_format_reward").__name__ == "think_format_reward"
    with pytest.raises(CommandError, match="has no 'think_format', did you mean 'think_format_reward'"):
        load_object("trl.rewards:think_format")


def test_paths_with_an_equals_sign(folder):
    place = folder / "runs" / "lr=1e-4"
    place.mkdir(parents=True)
    shutil.copyfile("guess.py", place / "game.py")
    path = "runs/lr=1e-4/game.py:GuessTheNumber"
    assert load_environment([path], {})().limit == 100
    assert load_environment([f"a-game={path}"], {})["a-game"]().limit == 100
    parser = Parser()
    add_agent_arguments(parser)
    for number, name in enumerate((path, f"a={path}")):
        run = folder / f"run_{number}"
        run.mkdir()
        (run / "config.json").write_text("{}")
        note_origin(run, [name], {}, "org/dataset", tools=[name, "m:f"])
        noted = json.loads((run / "_nlac_run.json").read_text())
        moved = name.replace("runs/", "../runs/")
        assert (noted["environment_factory"], noted["tools"]) == ([moved], [moved, "m:f"])
        assert noted["dataset_name"] == "org/dataset"
        args = parser.parse_args([run.name, "--trust_remote_code"])
        fill_from_run(args)
        assert args.environment_factory == [name]


def test_environments_play_as_in_the_run(folder):
    """That is what was trained with: so many at the same time, within so many seconds."""
    (folder / "run").mkdir()
    (folder / "run" / "config.json").write_text("{}")
    own = EnvironmentOptions(max_concurrent_environments=2, environment_timeout=7.0)
    note_origin("run", ["guess.py:GuessTheNumber"], {"limit": 7}, None, options=own)
    flags = shlex.split(origin_flags("run"))
    assert flags[-4:] == ["--max_concurrent_environments", "2", "--environment_timeout", "7.0"]
    parser = Parser()
    add_agent_arguments(parser)
    named, trusted = GUESS, ["--trust_remote_code"]
    for words, found in [
        (trusted, (2, 7.0)),
        ([*trusted, "--environment_timeout", "9"], (2, 9.0)),
        (flags, (2, 7.0)),
        (named, (None, 300.0)),
        ([*named, "--max_concurrent_environments", "3"], (3, 300.0)),
    ]:
        args = parser.parse_args(["run", *words])
        fill_from_run(args)
        pool, _ = load_environments(args)
        pool.close()
        assert (pool.max_instances, pool.timeout) == found
    for option, value in [("max_concurrent_environments", "0"), ("environment_workers", "fork")]:
        with pytest.raises(CommandError, match=f"`{option}` must be .*, got '?{value}"):
            load_environments(parser.parse_args(["run", *named, f"--{option}", value]))


def test_the_format_of_a_base_model_is_that_of_training(folder):
    """Otherwise an evaluation before training and one after it differ by more than training."""
    parser = Parser()
    add_agent_arguments(parser)
    prompts = ["--environment_factory", "trl_nlac.episodes.pool:Prompts", "--reward_funcs", "guess.py:pay"]
    factories = [["--environment_factory", f"guess.py:{name}"] for name in ("GuessTheNumber", "Counter")]
    for words, action_format in [(prompts, "text"), (factories[0], "react"), (factories[1], "tool_call")]:
        agent, pool, _ = load_player(parser.parse_args([TINY_MODEL, *words]))
        pool.close()
        assert agent.options.action_format == action_format
    agent = NLACAgent.from_pretrained(TINY_MODEL, device="cpu", brings_tools=True)
    assert agent.options.action_format == ("tool_call" if agent.roles.chat.calls_tools else "text")


def test_options_of_an_evaluation(folder, capsys, monkeypatch):
    asked = {}

    def evaluate(pool, rows, *numbers, **options):
        asked.update(options, rows=rows, numbers=numbers)
        raise CommandError("that is all")

    player = SimpleNamespace(evaluate=evaluate), SimpleNamespace(close=lambda: None), "rewards"
    monkeypatch.setattr("trl_nlac.cli.evaluate.load_player", lambda args: player)
    words = [*GUESS, "--dataset_name", "tasks.jsonl", "--max_tasks", "1"]
    words += ["--num_episodes", "2", "--num_critiques", "3", "--refine", "4", "--num_candidates", "5", "--seed", "6"]
    assert main(["evaluate", TINY_MODEL, *words]) == 2
    assert "that is all" in capsys.readouterr().err
    assert asked.pop("rows") == [{"number": 3}] and asked.pop("numbers") == (2, 3)
    assert asked == {"refine": 4, "num_candidates": 5, "seed": 6, "rewards": "rewards"}


def test_a_file_with_the_name_of_a_module_is_refused(folder, capsys):
    (folder / "found").mkdir()
    shutil.copy(folder / "guess.py", folder / "found" / "math.py")
    with pytest.raises(CommandError, match="there is a module 'math' already"):
        load_object("found/math.py:GuessTheNumber")
    assert sys.modules["math"] is math


@pytest.mark.parametrize("name", ["broken.py:A", "nu\0ll.py:A"])
def test_a_file_that_does_not_load_leaves_no_module(folder, name):
    (folder / "broken.py").write_text("raise RuntimeError('mine')")
    with pytest.raises(CommandError, match="RuntimeError: mine|embedded null byte"):
        load_object(name)
    assert name.partition(".")[0] not in sys.modules  # `inspect` asks each one for its file


def test_from_logs_alone(folder, run, capsys):
    assert main(["buffer", "export", str(run[0] / "checkpoint-2"), "logs.jsonl"]) == 0
    words = ["train", "--model_name_or_path", TINY_MODEL, "--replay_dataset", "logs.jsonl", "--output_dir", "offline"]
    words += ["--use_cpu", "--bf16", "False", "--action_format", "text", "--report_to", "none", "--max_steps", "1"]
    assert main([*words, "--max_completion_length", "32", "--logging_steps", "1"]) == 0
    assert "1 optimizer steps" in capsys.readouterr().out and (folder / "offline" / "nlac_roles.json").exists()


def test_prompts_need_no_environment(folder, capsys):
    (folder / "prompts.jsonl").write_text('{"prompt": "Say one."}\n{"prompt": "Say two."}\n')
    words = ["train", "--model_name_or_path", TINY_MODEL, "--dataset_name", "prompts.jsonl", "--output_dir", "prompts"]
    words += ["--use_cpu", "--bf16", "False", "--report_to", "none", "--max_steps", "1"]
    assert main(words) == 2
    assert "on prompts whose answers are scored, --dataset_name and --reward_funcs" in capsys.readouterr().err
    words += ["--reward_funcs", "guess.py:pay", "--max_completion_length", "16"]
    assert main([*words, "--dataset_name", "tasks.jsonl"]) == 2
    assert "(tasks have a column `prompt`)" in capsys.readouterr().err
    words += ["--dataset_train_split", "train[:1]", "--dataset_test_split", "train[1:]", "--eval_strategy", "steps"]
    assert main([*words, "--eval_on_start", "True", "--log_completions", "True"]) == 0
    assert "1 optimizer steps" in capsys.readouterr().out
    for kind, prompt in (("completions", "Say one."), ("eval_completions", "Say two.")):
        paths = map(str, Path("prompts", "completions").glob(f"{kind}_*.parquet"))
        assert {json.loads(task)["prompt"] for p in paths for task in Dataset.from_parquet(p)["task"]} == {prompt}
    assert main(["evaluate", "prompts", "--num_episodes", "2", "--trust_remote_code"]) == 0
    assert "0.25" in capsys.readouterr().out


class TestHelp:
    def test_all_commands_have_help(self, capsys):
        assert main([]) == main(["--help"]) == 0
        printed = capsys.readouterr().out
        assert all(f"{name} " in printed and description in printed for name, description in COMMANDS.items())
        for words, has_all in (("--help", False), ("--help_all", True)):
            with pytest.raises(SystemExit):
                main(["train", words])
            printed = capsys.readouterr().out
            assert "--environment_factory" in printed and ("--adam_beta1" in printed) == has_all
            assert "--max_turns INTEGER" in printed and "--max_prompt_length INTEGER" in printed


class TestPlay:
    def test_a_plain_model_with_its_own_prompts(self, folder, capsys, monkeypatch):
        improvements, act_on = [], NLACAgent.act_on

        def act(agent, prompts, *numbers, **options):
            improvements.append(numbers)
            return act_on(agent, prompts, *numbers, **options)

        monkeypatch.setattr(NLACAgent, "act_on", act)
        words = ["play", TINY_MODEL, *GUESS, "--task", '{"number": 4}']
        words += ["--option", "action_format=text", "max_turns=1", "max_completion_length=32"]
        assert main([*words, "--auto", "--num_candidates", "2", "--refine", "1"]) == 0
        assert improvements == [(1, 2)]
        printed = capsys.readouterr().out
        assert "candidate 2" in printed and "from 1 to 100" in printed and "truncated after 1 turn," in printed


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    trainer = make_trained(path, {"save_strategy": "steps", "save_steps": 2, "max_turns": 2})
    return path, trainer


class TestBuffer:
    def test_stats(self, run, capsys):
        for threshold, number in (("0", len(run[1].replay.episodes)), ("9", 0)):
            assert main(["buffer", "stats", str(run[0] / "checkpoint-2"), "--success_threshold", threshold]) == 0
            printed = capsys.readouterr().out
            assert re.search(rf"successes\W+{number}\b", printed)
        assert "transitions" in printed and str(len(run[1].replay)) in printed and "priorities: mean" in printed

    @pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
    def test_out_and_in_again(self, run, tmp_path, capsys, suffix):
        path, trainer = run
        logs = tmp_path / f"logs.{suffix}"
        assert main(["buffer", "export", str(path / "checkpoint-2"), str(logs)]) == 0
        rows = load_dataset("json" if suffix == "jsonl" else suffix, data_files=str(logs), split="train")
        assert [json.loads(task) for task in rows["task"]] == [episode.task for episode in trainer.replay.episodes]
        assert rows[0]["messages"][1] == {"role": "assistant", "content": trainer.replay.episodes[0].turns[0].action}
        model = ["--model", str(path / "checkpoint-2")]
        split, number = (["--split", "train[:3]"], 3) if suffix == "parquet" else ([], len(rows))
        assert main(["buffer", "import", str(logs), *model, "--check", *split]) == 0
        printed = capsys.readouterr().out
        assert re.search(rf"episodes\W+{number}\b", printed) and list(tmp_path.iterdir()) == [logs]
        assert main(["buffer", "import", str(logs), *model, "--check", "--max_prompt_length", "2"]) == 2
        assert "--max_prompt_length is 2" in capsys.readouterr().err
        if suffix == "jsonl":
            assert main(["buffer", "import", str(logs), *model, "--check", "--split", "train[:3]"]) == 2
            assert "is read as a whole" in capsys.readouterr().err
        assert main(["buffer", "import", str(logs), *model, "--output", str(tmp_path / "buffer")]) == 0
        again = PrioritizedReplay(100)
        again.load(tmp_path / "buffer")
        for first, second in zip(trainer.replay.episodes, again.episodes, strict=True):
            assert (first.token_ids == second.token_ids).all() and second.is_log
            assert [vars(turn) for turn in first.turns] == [vars(turn) for turn in second.turns]

    def test_malformed_conversations(self, run, tmp_path, capsys):
        logs = tmp_path / "logs.jsonl"
        logs.write_text('{"messages": [{"role": "user", "content": "situ"}], "reward": 1}\n')
        assert main(["buffer", "import", str(logs), "--model", TINY_MODEL, "--check"]) == 2
        assert "1 of 1 rows" in capsys.readouterr().err
        assert main(["buffer", "import", str(logs), "--model", TINY_MODEL]) == 2
        assert "add --output FOLDER, or --check" in capsys.readouterr().err
        assert main(["buffer", "stats", str(tmp_path)]) == 2
        assert "has no replay buffer" in capsys.readouterr().err
        assert main(["buffer", "export", str(run[0] / "checkpoint-2"), "logs.txt"]) == 2
        assert "must end with .jsonl or .parquet" in capsys.readouterr().err


def test_a_split_of_a_file(folder):
    Path("ten.jsonl").write_text("".join(f'{{"x": {i}}}\n' for i in range(10)))
    training, held_out = (list(load_rows("ten.jsonl", split=split)["x"]) for split in ("train[:80%]", "train[80%:]"))
    assert training == list(range(8)) and held_out == [8, 9]
    for options, message in (({"split": "test"}, "ten.jsonl: "), ({"config": "main"}, "has no configuration 'main'")):
        with pytest.raises(CommandError, match=message):
            load_rows("ten.jsonl", **options)


def test_results_have_a_folder(tmp_path):
    write_json(str(tmp_path / "a" / "b.json"), {"success": 1.0})
    assert json.loads((tmp_path / "a" / "b.json").read_text()) == {"success": 1.0}
