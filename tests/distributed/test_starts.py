# SPDX-License-Identifier: Apache-2.0

"""
Every recipe starts as it is printed; so does the quickstart, with every Accelerate configuration that no recipe names.
Two processes on a CPU, tiny models and short texts.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from trl_nlac.cli.launch import launch_command
from trl_nlac.cli.packaged import PACKAGE
from trl_nlac.environments.embedded import TINY_MODEL


QUICKSTART = PACKAGE.parent / "examples" / "scripts" / "nlac_quickstart.py"
RECIPES = sorted((PACKAGE / "recipes").glob("*.yaml"))
CONFIGS = {path.stem: path for path in (PACKAGE / "accelerate_configs").glob("*.yaml")}
GLOO = """
import deepspeed
deepspeed.init_distributed("gloo")

import runpy
import sys
sys.argv = sys.argv[1:]
run = runpy.run_module if sys.argv[0] == "trl_nlac" else runpy.run_path
run(sys.argv[0], run_name="__main__")
"""
ON_CPU = {
    "cpu": [],
    "single_gpu": ["--cpu"],
    "multi_gpu": ["--cpu", "--num_processes", "2"],
    "zero2": ["--num_processes", "2"],
    "zero3": ["--num_processes", "2"],
    "zero3_offload": ["--num_processes", "2"],  # on a machine's first run it builds DeepSpeed's Adam for some minutes
    "fsdp2": ["--cpu", "--num_processes", "2"],  # not sharded: on CPUs Accelerate does not; test_sharded.py makes it
}
SMALL = {
    **dict(model_name_or_path=TINY_MODEL, dtype="float32", use_cpu=True, bf16=False, report_to="none"),
    **dict(use_vllm=False, vllm_enable_sleep_mode=False, max_prompt_length=400, max_completion_length=16),
    **dict(max_turns=2, per_device_train_batch_size=2, gradient_accumulation_steps=2, samples_per_iteration=8),
    **dict(episodes_per_iteration=2, max_steps=2, save_strategy="steps", save_steps=2),
    "prompts": str(Path(TINY_MODEL) / "nlac_prompts.json"),
}
TASK = {
    "environment_factory": "trl_nlac.environments.embedded:demo_environment",
    "environment_kwargs": '{"world": "rooms", "seed": 0}',
    "dataset_name": str(PACKAGE / "recipes" / "rooms.jsonl"),
}


def printed_line(recipe: Path) -> list[str]:
    text = re.sub(r"^# ?", "", recipe.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    (line,) = [line.strip() for line in text.splitlines() if line.strip().startswith("trl-nlac train")]
    return shlex.split(line)[2:]


def without(words: list[str], *names: str) -> list[str]:
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not {before.removeprefix("--"), word.removeprefix("--")} & set(names)
    ]


def named_config(recipe: Path) -> str:
    words = printed_line(recipe)
    return words[words.index("--accelerate_config") + 1] if "--accelerate_config" in words else "cpu"


def start(launcher: list[str], config: str, script: list[str], arguments: list[str], directory: Path) -> str:
    """Launch a script, or a module after `-m`, with a configuration of Accelerate, and return what it printed."""
    if config.startswith("zero"):
        pytest.importorskip("deepspeed")
        if shutil.which("g++") is None:
            pytest.skip("DeepSpeed builds an extension for gloo")
        (directory / "gloo.py").write_text(GLOO)
        script = [str(directory / "gloo.py"), script[-1]]
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(PACKAGE.parent),
    }
    finished = subprocess.run(
        [*launcher, *ON_CPU[config], "--main_process_port", "0", "--mixed_precision", "no", *script, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=directory,
        timeout=900,
    )
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-5000:]
    return finished.stdout


def test_configs_are_what_their_names_say():
    configs = {name: load_config_from_file(str(path)) for name, path in CONFIGS.items()}
    assert configs.keys() == ON_CPU.keys()
    kinds = {name: config.distributed_type.value for name, config in configs.items()}
    assert kinds.pop("fsdp2") == "FSDP" and configs["fsdp2"].fsdp_config["fsdp_version"] == 2
    assert kinds.pop("multi_gpu") == "MULTI_GPU" and kinds.pop("cpu") == kinds.pop("single_gpu") == "NO"
    assert [name for name, config in configs.items() if config.use_cpu] == ["cpu"]
    assert set(kinds.values()) == {"DEEPSPEED"}
    stages = {name: configs[name].deepspeed_config["zero_stage"] for name in kinds}
    assert stages == {"zero2": 2, "zero3": 3, "zero3_offload": 3}
    devices = {
        configs[name].deepspeed_config[f"offload_{what}_device"] for name in kinds for what in ("param", "optimizer")
    }
    assert devices == {"none", "cpu"}
    assert configs["zero3_offload"].deepspeed_config["offload_param_device"] == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize("config", sorted(CONFIGS.keys() - {named_config(recipe) for recipe in RECIPES}))
def test_config_starts(config, tmp_path):
    arguments = ["--world", "rooms", "--max_steps", "2", "--eval_steps", "2", "--num_eval_episodes", "1"]
    arguments += ["--num_eval_critiques", "4", "--output_dir", str(tmp_path)]
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS[config])]
    assert "What was learned" in start(launcher, config, [str(QUICKSTART)], arguments, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size > 1e6


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_starts(recipe, tmp_path):
    config, own = named_config(recipe), {**SMALL, "output_dir": str(tmp_path / "run")}
    if recipe.stem == "logs":
        messages = [
            {"role": "user", "content": "rasi"},
            {"role": "assistant", "content": "go north"},
            {"role": "user", "content": "late win"},
        ]
        logs = tmp_path / "logs.jsonl"
        logs.write_text("".join(json.dumps({"messages": messages, "reward": float(i % 2)}) + "\n" for i in range(8)))
        own["replay_dataset"] = str(logs)
    else:
        own.update(TASK)
    launched = "accelerate_config num_processes num_machines machine_rank main_process_ip main_process_port".split()
    words = without(printed_line(recipe), *launched, "vllm_server_host", *own)
    words += ["--accelerate_config", config, *(f"--{option}={value}" for option, value in own.items())]
    command = launch_command(words)
    script = command.index("-m", command.index("--config_file"))
    start(command[:script], config, command[script : script + 2], command[script + 2 :], tmp_path)
    state = json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2
