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

"""Every recipe starts as it is printed, with two processes on a CPU, a tiny model and short texts."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trl_nlac.cli.launch import launch_command
from trl_nlac.cli.packaged import PACKAGE
from trl_nlac.environments.embedded import TINY_MODEL


RECIPES = sorted((PACKAGE / "recipes").glob("*.yaml"))
# DeepSpeed's engine needs the first two lines on a CPU.
GLOO = """
import deepspeed
deepspeed.init_distributed("gloo")

import sys
from trl_nlac.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
# What a CPU and two processes need; everything else is the recipe's.
SMALL = {
    "model_name_or_path": TINY_MODEL,
    "dtype": "float32",
    "use_cpu": True,
    "bf16": False,
    "use_vllm": False,
    "vllm_enable_sleep_mode": False,
    "max_prompt_length": 400,
    "max_completion_length": 16,
    "max_turns": 2,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "samples_per_iteration": 8,
    "episodes_per_iteration": 2,
    "max_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "report_to": "none",
    "prompts": str(Path(TINY_MODEL) / "nlac_prompts.json"),
}
TASK = {
    "environment_factory": "trl_nlac.environments.embedded:demo_environment",
    "environment_kwargs": '{"world": "rooms", "seed": 0}',
    "dataset_name": str(PACKAGE / "recipes" / "rooms.jsonl"),
}


def printed_line(recipe: Path) -> list[str]:
    """The words of the command that a recipe prints, after `trl-nlac train`."""
    text = re.sub(r"^# ?", "", recipe.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    (line,) = [line.strip() for line in text.splitlines() if line.strip().startswith("trl-nlac train")]
    return shlex.split(line)[2:]


def without(words: list[str], *names: str) -> list[str]:
    """Leave out options with their values."""
    return [
        word
        for before, word in zip(["", *words], words, strict=False)
        if not {before.removeprefix("--"), word.removeprefix("--")} & set(names)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_starts(recipe, tmp_path):
    words = printed_line(recipe)
    own = {**SMALL, "output_dir": str(tmp_path / "run")}
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
    words = without(words, "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port")
    words = without(words, "vllm_server_host", *own)
    if "--accelerate_config" not in words:
        words = ["--accelerate_config", "cpu", *words]
    name = words[words.index("--accelerate_config") + 1]
    words += [f"--{option}={value}" for option, value in own.items()]
    command = launch_command(words)
    start = command.index("-m", command.index("--config_file"))
    launcher, training = command[:start], command[start + 2 :]
    if name.startswith("zero"):
        pytest.importorskip("deepspeed")
        if shutil.which("g++") is None:
            pytest.skip("DeepSpeed builds an extension for gloo")
        (tmp_path / "gloo.py").write_text(GLOO)
        command = [*launcher, "--num_processes", "2", "--mixed_precision", "no", str(tmp_path / "gloo.py"), *training]
    else:
        launcher += ["--cpu", *(["--num_processes", "2"] if name == "multi_gpu" else [])]
        command = [*launcher, "--mixed_precision", "no", *command[start:]]
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(PACKAGE.parent),
    }
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=600)
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-5000:]
    assert json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())["global_step"] == 2
