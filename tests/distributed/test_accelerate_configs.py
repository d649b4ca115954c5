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

"""Every Accelerate configuration matches its name, and starts the quickstart as far as a CPU allows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file


ROOT = Path(__file__).parent.parent.parent
CONFIGS = ROOT / "trl_nlac" / "accelerate_configs"
# DeepSpeed's engine needs this first on a CPU.
GLOO = """
import runpy
import sys

import deepspeed

deepspeed.init_distributed("gloo")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
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


def test_configs_are_what_their_names_say():
    configs = {path.stem: load_config_from_file(str(path)) for path in CONFIGS.glob("*.yaml")}
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
@pytest.mark.parametrize("name", ON_CPU)
def test_config_starts(name, tmp_path):
    quickstart = str(ROOT / "examples" / "scripts" / "nlac_quickstart.py")
    arguments = ["--world", "rooms", "--max_steps", "2", "--eval_steps", "2", "--num_eval_episodes", "1"]
    arguments += ["--num_oracle_probes", "4", "--output_dir", str(tmp_path)]
    script = [quickstart]
    if name.startswith("zero"):
        pytest.importorskip("deepspeed")
        if shutil.which("g++") is None:
            pytest.skip("DeepSpeed builds an extension for gloo")
        (tmp_path / "gloo.py").write_text(GLOO)
        script = [str(tmp_path / "gloo.py"), quickstart]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / f"{name}.yaml")]
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
    }
    command += ["--mixed_precision", "no", *ON_CPU[name], *script, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=900)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "What was learned" in finished.stdout
    assert (tmp_path / "model.safetensors").stat().st_size > 1e6
