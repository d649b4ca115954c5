# SPDX-License-Identifier: Apache-2.0

"""How `trl-nlac train --accelerate_config` starts processes, and where recipes and configurations are found."""

import sys

import pytest

from trl_nlac.cli.errors import CommandError
from trl_nlac.cli.launch import launch_command
from trl_nlac.cli.main import main
from trl_nlac.cli.packaged import PACKAGE, find_path, find_yaml
from trl_nlac.cli.train_options import TrainParser


ZERO3 = str(PACKAGE / "accelerate_configs" / "zero3.yaml")
LAUNCH = [sys.executable, "-m", "accelerate.commands.launch", "--quiet", "--config_file"]
TRAIN = ["-m", "trl_nlac", "train"]


@pytest.mark.parametrize(
    ("words", "of_launcher", "of_training"),
    [
        ("--accelerate_config zero3 --config paper", "", "--config paper"),
        ("--config paper --accelerate_config=zero3 --num_processes 4", "--num_processes 4", "--config paper"),
        (
            "--seed 4 --num_processes 4 --accelerate_config zero3 --tools a:b c:d --use_vllm --machine_rank 0",
            "--num_processes 4 --machine_rank 0",
            "--seed 4 --tools a:b c:d --use_vllm",
        ),
    ],
)
def test_the_launcher_gets_what_the_training_does_not_know(words, of_launcher, of_training):
    expected = [*LAUNCH, ZERO3, *of_launcher.split(), *TRAIN, *of_training.split()]
    assert launch_command(words.split()) == expected


def test_a_file_of_the_reader_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero3").write_text("")
    assert launch_command(["--accelerate_config", "zero3"])[len(LAUNCH)] == "zero3"
    assert find_path("trl_nlac/tiny_model") == str(PACKAGE / "tiny_model")
    (tmp_path / "trl_nlac" / "tiny_model").mkdir(parents=True)
    assert find_path("trl_nlac/tiny_model") == "trl_nlac/tiny_model"
    assert find_path("trl_nlac/elsewhere") == "trl_nlac/elsewhere" and find_path(None) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--accelerate_config", "zero4"], "--accelerate_config zero4: .* It has: cpu, fsdp2, .* mean 'zero3'?"),
        (["--accelerate_config", "zero3", "--num_process", "2"], "option '--num_process', did you mean '--num_proc"),
        (["--accelerate_config", "zero3", "--max_turn", "2"], "no option '--max_turn', did you mean '--max_turns'?"),
        (["--config", "papers"], "--config papers: .* It has: cpu, .* Did you mean 'paper'?"),
    ],
)
def test_errors_say_what_there_is(words, message, capsys):
    with pytest.raises(CommandError, match=message):
        launch_command(words) if "--accelerate_config" in words else TrainParser().read(words)
    assert main(["train", *words]) == 2
    assert capsys.readouterr().err.startswith("trl-nlac train: error: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accelerate_config: zero3", "Write --accelerate_config on the command line"),
        ("max_turn: 3", "there is no option '--max_turn', did you mean '--max_turns'?"),
    ],
)
def test_what_does_not_belong_into_a_recipe(tmp_path, text, message):
    (tmp_path / "run.yaml").write_text(f"{text}\nuse_cpu: true\nbf16: false\n")
    with pytest.raises(CommandError, match=message):
        TrainParser().read(["--config", str(tmp_path / "run.yaml")])


def test_every_packaged_file_is_found():
    for folder in ("recipes", "accelerate_configs"):
        for path in (PACKAGE / folder).glob("*.yaml"):
            assert find_yaml("--x", folder, path.stem) == find_yaml("--x", folder, str(path)) == str(path)
