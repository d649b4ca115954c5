# SPDX-License-Identifier: Apache-2.0

"""`trl-nlac plan`: what it prints, the recipes that it is asked about, and the lines that scripts and pages print."""

import json
import re
import shlex
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from helpers.hub_configs import cache_configs
from peft import LoraConfig

from trl_nlac.cli.errors import CommandError
from trl_nlac.cli.main import main
from trl_nlac.cli.packaged import PACKAGE
from trl_nlac.cli.parsers import plan_parser
from trl_nlac.cli.plan import launch_lines, make_plan
from trl_nlac.cli.train_options import TrainParser
from trl_nlac.planning.run_plan import Plan


ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (PACKAGE / "recipes").glob("*.yaml") if path.stem != "cpu")
PRINTED = [ROOT / "README.md", *sorted((ROOT / "docs" / "source").glob("*.md"))]
PRINTED += [*sorted((ROOT / "examples" / "scripts").glob("*.py")), *RECIPES]
IN_PARTS = "--config zero3_vllm_8gpu --gpus 8x80GB --vllm_tensor_parallel_size"
# GB that each recipe leaves of 80 at least, besides the reserve.
MARGINS = {"paper": 10, "zero3_server_16gpu": 15, "zero3_vllm_8gpu": 5}
MARGINS |= dict.fromkeys(("hindsight", "logs", "lora_1gpu", "self_distillation", "thrifty"), 25)


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    cache_configs(tmp_path / "hub", monkeypatch)


def plan_of(line: str) -> tuple[Plan, list[str]]:
    args, words = plan_parser().parse_known_args(shlex.split(line))
    plan, names = make_plan(args, words)
    return plan, launch_lines(plan, names, words)


def lines_of(path: Path) -> list[str]:
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
    (planned,) = [line for line in lines_of(recipe) if line.startswith("trl-nlac plan ")]
    plan, starts = plan_of(planned.removeprefix("trl-nlac plan "))
    assert plan.fits and not plan.warnings
    assert plan.margin > MARGINS[recipe.stem] * 1e9
    others = [line for line in lines_of(recipe) if line != planned]
    for start, line in zip(starts, others, strict=True):
        assert line.startswith(start)


def test_what_readme_says_of_its_example():
    text = " ".join((ROOT / "README.md").read_text().split())
    (model,) = re.findall(r'model="([\w/.-]+)"', text)
    (most,), (options,) = re.findall(r"at most (\d+) GB", text), re.findall(r"For 24 GB add `([^`]+)`", text)
    words = [word for option in options.split(", ") for word in f"--{option}".split("=")]
    plan, _ = plan_of(f"--model_name_or_path {model} --gpus 1x80GB")
    assert plan.fits and int(most) == round(plan.peak / 1e9)
    assert plan_of(shlex.join(["--model_name_or_path", model, "--gpus", "1x24GB", *words]))[0].fits


@pytest.mark.parametrize(("name", "line"), gpu_lines())
def test_printed_lines_have_a_batch_size_and_fit(name, line):
    """With the model that a script takes by default, on GPUs with 80 GB: as many as there are processes, or eight."""
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
    default = "Qwen/Qwen2.5-7B-Instruct"  # of a reader's script, on these pages
    if launch.training_script != "my_script.py":
        (default,) = re.findall(r'model_name_or_path="([\w/.-]+)"', (ROOT / launch.training_script).read_text())
    unknown = TrainParser().parse_known_args(arguments)[1]
    own = [word for word in arguments if word not in unknown]
    machine = ["--gpus", "1x80GB"]
    if launch.config_file:
        nodes = launch.num_machines or 1
        machine = ["--gpus", f"{(launch.num_processes or 8) // nodes}x80GB", "--nodes", str(nodes)]
        machine += ["--server_gpus", "8x80GB", "--accelerate_config", launch.config_file]
    plan, _ = plan_of(shlex.join(["--model_name_or_path", default, *own, *machine]))
    assert plan.fits, (line, plan.problems)


def test_a_server_of_adapters_starts_and_is_found():
    line = "--config lora_1gpu --use_vllm True --vllm_mode server --gpus 4x80GB --server_gpus 2x80GB"
    _, (server, training) = plan_of(f"{line} --lora_r 20")
    assert server.endswith("--enable-lora --max-loras 3 --max-lora-rank 32")
    assert plan_of(f"{line} --lora_r 300")[1][0].endswith("--max-lora-rank 320")
    assert training.endswith("--vllm_server_host $ADDRESS_OF_SERVER --vllm_server_weights_dir $FOLDER_THAT_BOTH_SEE")
    given = "--vllm_server_base_url http://10.0.0.7:8000 --vllm_server_weights_dir /shared"
    _, (server, training) = plan_of(f"{line} --lora_r 4 {given}")
    assert server.endswith("--max-lora-rank 8") and training.endswith(given)


def test_an_adapter_is_planned_by_its_folder(tmp_path):
    new = "--config lora_1gpu --use_vllm True --vllm_mode server --gpus 4x80GB --server_gpus 2x80GB --lora_r 20"
    _, model, _ = TrainParser().read(shlex.split("--config lora_1gpu --lora_r 20"))
    folder = tmp_path / "adapter"
    options = dict(r=model.lora_r, lora_alpha=model.lora_alpha, lora_dropout=model.lora_dropout)
    options |= dict(target_modules=model.lora_target_modules, base_model_name_or_path=model.model_name_or_path)
    LoraConfig(task_type="CAUSAL_LM", inference_mode=True, **options).save_pretrained(folder)
    (wanted, (server, _)), (plan, (found, training)) = (
        plan_of(line) for line in (new, f"{new} --use_peft False --model_name_or_path {folder}")
    )
    assert (plan.memory, plan.host, plan.iteration) == (wanted.memory, wanted.host, wanted.iteration)
    assert found == server and f"--model_name_or_path {folder}" in training
    for option, message in (
        ("--use_peft True", "it is an adapter, and --use_peft would add another"),
        ("--use_peft False --model_revision v2", "Leave out `--model_revision`"),
    ):
        with pytest.raises(CommandError, match=f"{folder}: .*{message}"):
            plan_of(f"{new} --model_name_or_path {folder} {option}")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--config lora_1gpu --use_vllm True --gpus 4x80GB --accelerate_config fsdp2", "with adapters and use_vllm"),
        (
            "--config lora_1gpu --use_vllm True --gpus 1x160GB --lora_r 600",
            "lora_r: 600: vLLM serves ranks of at most 512",
        ),
        (f"{IN_PARTS} 3", "vllm_tensor_parallel_size: 3 .* 1 or 2 or 4"),
        (f"{IN_PARTS} 8", "vllm_tensor_parallel_size: 8 .* 1 or 2 or 4"),
    ],
)
def test_what_the_run_refuses_is_a_problem(line, problem):
    plan, _ = plan_of(line)
    (found,) = plan.problems
    assert re.search(problem, found) and plan.fitting is None


def test_a_long_context_is_shortened():
    """vLLM does not start with all that the model could read, and does with the length that the recipe names."""
    line = "--config lora_1gpu --model_name_or_path Qwen/Qwen3-4B-Instruct-2507 --gpus 1x80GB --use_vllm True"
    plan, _ = plan_of(line)
    assert plan.problems[0].startswith("vLLM does not start")
    assert plan.fitting[0] == {"vllm_max_model_length": 4608}
    recipe = (PACKAGE / "recipes" / "lora_1gpu.yaml").read_text()
    assert "`use_vllm: true` and `vllm_max_model_length: 4608`" in recipe
    assert plan_of(f"{line} --vllm_max_model_length 4608")[0].fits
    without, _ = plan_of(f"{line} --use_vllm False --max_generation_batch_size 512")
    changes = next(options for options, other in without.changes() if "use_vllm" in options and other.fits)
    assert changes["vllm_max_model_length"] == 4608


def test_json(capsys):
    assert main(["plan", "--config", "zero3_vllm_8gpu", "--gpus", "8x80GB", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assumed = " ".join(result["assumed"])
    assert all(words in assumed for words in ("fused attention", "reads trees", "vLLM takes", "operations a second"))
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


def test_a_plan_ends_with_a_command_that_fits(capsys):
    """Two changes where one is not enough: with the command's options the plan fits."""
    words = "--model_name_or_path Qwen/Qwen2.5-7B-Instruct --use_peft True --dtype bfloat16 --gpus 1x24GB"
    words = f"{words} --num_tasks 100"
    plan, _ = plan_of(words)
    assert not plan.fits and not any(other.fits for _, other in plan.changes())
    iterations = plan.options.num_train_epochs * 100 / plan.options.episodes_per_iteration
    assert plan.hours == pytest.approx(iterations * sum(phase.seconds for phase in plan.iteration) / 3600)
    assert main(["plan", *words.split()]) == 0
    printed = capsys.readouterr().out
    command, hours = [line.strip() for line in printed.splitlines()[-2:]]
    again, _ = plan_of(f"{command.removeprefix('trl-nlac train ')} --gpus 1x24GB --num_tasks 100")
    assert command.startswith("trl-nlac train --accelerate_config single_gpu") and again.fits
    assert again.hours > 2 * plan.hours  # one sequence at once in place of 64
    assert hours == f"Hours of this whole run: {again.hours:,.2f}" and "3,350 GB of its memory" in printed
    assert main(["plan", *words.split(), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["launch"] == [command] and result["launch_hours"] == again.hours


@pytest.mark.parametrize("options", ["", "--use_peft True", "--use_vllm True", "--use_vllm True --use_peft True"])
def test_every_row_is_explained_in_its_line(options, capsys):
    assert main(["plan", *f"--model_name_or_path Qwen/Qwen2.5-7B-Instruct --gpus 8x80GB {options}".split()]) == 0
    labels = [line.split("│")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    known = ("sum", "fits", "left, besides 2 for CUDA itself")
    assert len(labels) > 15 and all(label in known or re.match(r"[\w ]+: [\w' ]+", label) for label in labels)
