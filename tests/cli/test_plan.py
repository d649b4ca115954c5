# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""`trl-nlac plan`: what it prints, the recipes that it is asked about, and the lines that scripts and pages print."""

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from helpers.hub_configs import cache_configs

from trl_nlac.cli.main import main
from trl_nlac.cli.packaged import PACKAGE
from trl_nlac.cli.plan import launch_lines, make_parser, make_plan
from trl_nlac.cli.train_options import TrainParser
from trl_nlac.planning.plan import Plan


ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (PACKAGE / "recipes").glob("*.yaml") if path.stem != "cpu")
PRINTED = [ROOT / "README.md", *sorted((ROOT / "docs" / "source").glob("*.md"))]
PRINTED += [*sorted((ROOT / "examples" / "scripts").glob("*.py")), *RECIPES]
# GB that each recipe leaves of 80 at least, besides the reserve.
MARGINS = {"logs": 25, "lora_1gpu": 25, "paper": 10, "zero3_server_16gpu": 15, "zero3_vllm_8gpu": 5}


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    cache_configs(tmp_path / "hub", monkeypatch)


def plan_of(line: str) -> tuple[Plan, list[str]]:
    args, words = make_parser().parse_known_args(shlex.split(line))
    plan, names = make_plan(args, words)
    return plan, launch_lines(plan, names, words)


def lines_of(path: Path) -> list[str]:
    """The commands that a file prints, each in one line."""
    text = re.sub(r"^# ?", "", path.read_text(), flags=re.MULTILINE) if path.suffix == ".yaml" else path.read_text()
    lines = [" ".join(line.split()) for line in text.replace("\\\n", " ").splitlines()]
    starts = ("accelerate launch ", "trl-nlac train ", "trl-nlac plan ", "VLLM_SERVER_DEV_MODE=1 vllm serve ")
    return [line for line in lines if line.startswith(starts)]


def gpu_lines() -> list[tuple[str, str]]:
    found = []
    for path in PRINTED:
        for line in lines_of(path):
            on_gpus = line.startswith(("accelerate launch ", "trl-nlac train --accelerate_config"))
            if on_gpus and not {"--use_cpu", "cpu"} & set(line.split()):
                found.append((path.name, line))
    return found


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_fit_as_printed(recipe):
    """With a margin; and the plan prints the lines of the recipe."""
    (planned,) = [line for line in lines_of(recipe) if line.startswith("trl-nlac plan ")]
    plan, starts = plan_of(planned.removeprefix("trl-nlac plan "))
    assert plan.fits and not plan.warnings
    assert plan.margin > MARGINS[recipe.stem] * 1e9
    others = [line for line in lines_of(recipe) if line != planned]
    for start, line in zip(starts, others, strict=True):
        assert line.startswith(start)


@pytest.mark.parametrize(("name", "line"), gpu_lines())
def test_printed_lines_have_a_batch_size_and_fit(name, line):
    """Of the scripts with the model that they take by default, on one GPU with 80 GB or eight."""
    words = shlex.split(line.replace("$RANK_OF_THIS_NODE", "0"))
    if words[0] == "trl-nlac":
        read = vars(TrainParser().parse_known_args(words[2:])[0])
        recipe = PACKAGE / "recipes" / f"{read['config']}.yaml"
        assert "--per_device_train_batch_size" in words or "per_device_train_batch_size" in recipe.read_text(), name
        return
    launch = launch_command_parser().parse_args(words[2:])
    arguments = launch.training_script_args
    if launch.training_script == "my_script.py" and not arguments:  # its options are in the script
        page = next(path for path in PRINTED if path.name == name)
        assert "per_device_train_batch_size=1" in page.read_text(), name
        return
    assert "--per_device_train_batch_size" in arguments, name
    if launch.training_script != "my_script.py":
        (default,) = re.findall(r'model_name_or_path="([\w/.-]+)"', (ROOT / launch.training_script).read_text())
        unknown = TrainParser().parse_known_args(arguments)[1]
        own = [word for word in arguments if word not in unknown]
        machine = ["--gpus", "1x80GB"]
        if launch.config_file:
            machine = ["--gpus", "8x80GB", "--accelerate_config", launch.config_file]
        plan, _ = plan_of(shlex.join(["--model_name_or_path", default, *own, *machine]))
        assert plan.fits, (line, plan.problems)


def test_the_line_that_was_printed_before_does_not_fit():
    """20 questions on 8 GPUs, with the default batch sizes; and the plan names what makes it fit."""
    line = "--model_name_or_path Qwen/Qwen2.5-7B-Instruct --max_turns 25 --gpus 8x80GB --accelerate_config zero3"
    plan, _ = plan_of(line)
    assert not plan.fits and plan.problems[0].startswith("generation: ")
    assert any(other.fits for _, other in plan.remedies)
    text, other = next((text, other) for text, other in plan.remedies if other.fits)
    assert "use_vllm" in text or "max_generation_batch_size" in text
    assert other.peak + other.machines.reserve <= other.machines.memory


def test_the_page_shows_what_is_printed():
    script = runpy.run_path(str(ROOT / "docs" / "plans.py"))
    page = script["PAGE"].read_text()
    assert len(script["BLOCKS"].findall(page)) == 3
    assert script["filled"](page) == page


def test_the_longest_phase_is_marked(capsys):
    assert main(["plan", "--config", "paper", "--gpus", "8x80GB", "--nodes", "8"]) == 0
    (marked,) = [line for line in capsys.readouterr().out.splitlines() if "(longest)" in line]
    seconds = {phase.name: phase.seconds for phase in plan_of("--config paper --gpus 8x80GB --nodes 8")[0].iteration}
    assert max(seconds, key=seconds.get) in marked


def test_json(capsys):
    assert main(["plan", "--config", "zero3_vllm_8gpu", "--gpus", "8x80GB", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fits"] and result["parameters"] == result["trained_parameters"] == 7_615_616_512
    assert result["longest_phase"] in {phase["name"] for phase in result["iteration"]}
    assert result["activations_gb"]["without"] > 10 * result["activations_gb"]["with gradient checkpointing"]
    assert result["launch"] == ["trl-nlac train --accelerate_config zero3 --num_processes 8 --config zero3_vllm_8gpu"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--config paper", "--gpus"),
        ("--config paper --gpus 80GB", "--gpus 80GB must be written as 8x80GB"),
        ("--config paper --gpus 8x80GB --nodes 0", "there is no GPU to use"),
        ("--gpus 8x80GB", "--model_name_or_path is missing"),
        ("--config paper --gpus 8x80GB --nodes 8 --accelerate_config single_gpu", "starts one process"),
        ("--config paper --gpus 8x80GB --nodes 8 --tflops 0", "--tflops 0 must be above 0"),
        ("--config paper --gpus 8x80GB --nodes 8 --max_turn 3", "there is no option '--max_turn'"),
        ("--config paper --gpus 7x80GB", "must be divisible by"),
    ],
)
def test_errors(words, message, capsys):
    assert main(["plan", *words.split()]) == 2
    assert message in capsys.readouterr().err
