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

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


# Accelerate supports FSDP only on GPUs, and its state is one for the whole process.
FSDP = """
from accelerate import Accelerator, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin

accelerator = Accelerator(cpu=True)
accelerator.state.distributed_type = DistributedType.FSDP
accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version={version})
"""
ZERO = """
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin

config = {{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "zero_optimization": {zero}}}
accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
"""
CHECK = """
from trl_nlac.generation.loading import check_sharding

try:
    check_sharding(accelerator)
except ValueError as error:
    print(f"refused: {error}")
"""
LOAD_WITH_ADAPTER = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.loading import load_generator
from trl_nlac.options.generation import GenerationOptions

model = get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), LoraConfig())
try:
    load_generator(model, GenerationOptions(use_vllm=True), accelerator, None, [])
except ValueError as error:
    print(f"refused: {error}")
"""


def run(script: str) -> str:
    """Run a script in a separate process."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (FSDP.format(version=1), "refused: FSDP 1 is not supported: set `fsdp_version: 2`"),
        (ZERO.format(zero={"stage": 3, "offload_param": {"device": "nvme"}}), "refused: `offload_param`"),
    ],
    ids=["fsdp1", "zero3-nvme"],
)
def test_sharding_that_is_not_supported_is_refused(sharding, message):
    if "DeepSpeed" in sharding and find_spec("deepspeed") is None:
        pytest.skip("needs DeepSpeed")
    assert message in run(sharding + CHECK)


def test_vllm_with_a_sharded_adapter():
    pytest.importorskip("peft")
    printed = run(FSDP.format(version=2) + LOAD_WITH_ADAPTER)
    assert "refused: `use_vllm=True` with an adapter" in printed and "not supported under FSDP2" in printed


ADAPTERS = """
from accelerate import Accelerator
from peft import IA3Config, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.loading import load_generator
from trl_nlac.options.generation import GenerationOptions

for config in (
    IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[]),
    LoraConfig(init_lora_weights="pissa"),
    LoraConfig(init_lora_weights="olora"),
    LoraConfig(rank_pattern={"q_proj": 2}),
    LoraConfig(alpha_pattern={"q_proj": 2}),
):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), config)
    try:
        load_generator(model, GenerationOptions(use_vllm=True), Accelerator(cpu=True), None, [])
    except ValueError as error:
        print(f"refused: {error}")
"""


def test_adapters_that_vllm_would_serve_as_others():
    pytest.importorskip("peft")
    lines = [line for line in run(ADAPTERS).splitlines() if line.startswith("refused: ")]
    messages = ["IA3Config", "`init_lora_weights='pissa'`", "`init_lora_weights='olora'`", "`rank_pattern`"]
    for line, message in zip(lines, [*messages, "`alpha_pattern`"], strict=True):
        assert message in line


NODES = """
from accelerate import Accelerator, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin

from trl_nlac.generation.joint import JointGenerator
from trl_nlac.generation.loading import load_generator
from trl_nlac.options.generation import GenerationOptions

accelerator = Accelerator(cpu=True)
accelerator.state.distributed_type = DistributedType.FSDP
accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
accelerator.state.num_processes = 16
try:
    generator = load_generator(None, GenerationOptions(ds3_gather_for_generation={gathers}), accelerator, None, [])
    print("joint" if isinstance(generator, JointGenerator) else "alone")
except ValueError as error:
    print(f"refused: {{error}}")
"""


@pytest.mark.parametrize(
    ("gathers", "of_node", "expected"),
    [(True, "8", "alone"), (False, "16", "joint"), (False, "8", "refused: `ds3_gather_for_generation=False` without")],
)
def test_no_model_travels_between_nodes_for_every_token(monkeypatch, gathers, of_node, expected):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", of_node)
    assert run(NODES.format(gathers=gathers)).startswith(expected)
