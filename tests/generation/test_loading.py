# SPDX-License-Identifier: Apache-2.0

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType, ParallelismConfig
from helpers.launch import run_program

from trl_nlac.generation.loading import adapter_config, check_adapter, check_adapter_precision, check_sharding


# Says for each case by name which generator is loaded, or why none is. In a process of its own: the state of an
# accelerator is one for the whole process, and Accelerate supports FSDP only on GPUs.
FSDP = """
import json
import os

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from peft import IA3Config, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.joint import JointGenerator
from trl_nlac.generation.loading import load_generator
from trl_nlac.options.generation_options import GenerationOptions


accelerator = Accelerator(cpu=True)
found = {}


def load(name, model=None, **options):
    try:
        generator = load_generator(model, GenerationOptions(**options), accelerator, None, [])
        found[name] = "joint" if isinstance(generator, JointGenerator) else "alone"
    except ValueError as error:
        found[name] = str(error)


def load_adapter(name, adapter):
    load(name, get_peft_model(AutoModelForCausalLM.from_pretrained(TINY_MODEL), adapter), use_vllm=True)


load_adapter("ia3", IA3Config(task_type="CAUSAL_LM", target_modules=["k_proj"], feedforward_modules=[]))
load_adapter("olora", LoraConfig(init_lora_weights="olora"))
load_adapter("bias", LoraConfig(lora_bias=True))

accelerator.state.device = torch.device("cuda")
load_adapter("float32", LoraConfig())
accelerator.state.device = torch.device("cpu")

accelerator.state.distributed_type = DistributedType.FSDP
accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=1)
load("fsdp1")
accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
load_adapter("sharded adapter", LoraConfig())

accelerator.state.num_processes = 16
for name, gathers, of_node in (("whole", True, "8"), ("one node", False, "16"), ("two nodes", False, "8")):
    os.environ["LOCAL_WORLD_SIZE"] = of_node
    load(name, ds3_gather_for_generation=gathers)

print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, str]:
    pytest.importorskip("peft")
    return json.loads(run_program("-c", FSDP).splitlines()[-1])


def test_sharding_that_is_not_supported_is_refused(loaded):
    assert loaded["fsdp1"].startswith("FSDP 1 is not supported: set `fsdp_version: 2`")


def stand_in(parallelism: ParallelismConfig | None, deepspeed: SimpleNamespace | None = None) -> SimpleNamespace:
    return SimpleNamespace(
        parallelism_config=parallelism,
        distributed_type=DistributedType.FSDP,
        is_fsdp2=True,
        state=SimpleNamespace(deepspeed_plugin=deepspeed),
    )


@pytest.mark.parametrize(("stage", "device", "is_refused"), [(3, "nvme", True), (3, "cpu", False), (2, "nvme", False)])
def test_parameters_on_disks_are_refused(stage, device, is_refused):
    zero = {"stage": stage, "offload_param": {"device": device}}
    plugin = SimpleNamespace(zero_stage=stage, deepspeed_config={"zero_optimization": zero})
    with pytest.raises(ValueError, match="^`offload_param`") if is_refused else nullcontext():
        check_sharding(stand_in(None, plugin))


@pytest.mark.parametrize(
    ("sizes", "named"), [({"sp_size": 2}, "`sp_size`"), ({"tp_size": 2, "cp_size": 2}, "`tp_size`, `cp_size`")]
)
def test_processes_that_share_samples_are_refused(sizes, named):
    with pytest.raises(ValueError, match=f"{named} above 1 in `parallelism_config` .*Leave it at 1"):
        check_sharding(stand_in(ParallelismConfig(**sizes)))


def test_copies_of_shards_are_not_refused():
    check_sharding(stand_in(ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)))
    check_sharding(stand_in(None))


def test_vllm_with_a_sharded_adapter(loaded):
    assert loaded["sharded adapter"].startswith("`use_vllm=True` with an adapter")
    assert "not supported under FSDP2" in loaded["sharded adapter"]


def test_adapters_that_vllm_would_serve_as_others(loaded):
    messages = {"ia3": "IA3", "bias": "`lora_bias`", "olora": "`init_lora_weights='olora'`"}
    for name, message in messages.items():
        assert message in loaded[name]


@pytest.mark.parametrize("dtype", [torch.float32, "float32", "float"])
def test_adapters_that_vllm_cannot_compute(loaded, dtype):
    """Its kernels for GPUs; those for CPUs can."""
    assert "float32. Set `bf16=True`" in loaded["float32"]
    with pytest.raises(ValueError, match="bfloat16 or float16, and this model is in float32"):
        check_adapter_precision(dtype, "cuda")
    check_adapter_precision(dtype, "cpu")
    for other in (torch.bfloat16, "half", "auto", None):
        check_adapter_precision(other, "cuda")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha_pattern": {"q_proj": 64}}, "does not read `alpha_pattern` of an adapter, here {'q_proj': 64}"),
        ({"rank_pattern": {"q_proj": 64}}, "does not read `rank_pattern` of an adapter, here {'q_proj': 64}"),
        ({"alora_invocation_tokens": [5]}, r"does not read `alora_invocation_tokens` of an adapter, here \[5\]"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "does not read `layer_replication` of an adapter"),
        ({"init_lora_weights": "pissa"}, "`init_lora_weights='pissa'` changes the base weights"),
    ],
)
def test_saved_adapters_that_vllm_would_serve_as_others(tmp_path, settings, message):
    peft = pytest.importorskip("peft")
    peft.LoraConfig(r=4).save_pretrained(tmp_path / "plain")
    check_adapter(adapter_config(str(tmp_path / "plain"), None))
    peft.LoraConfig(r=4, **settings).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{message}.*generate without vLLM"):
        check_adapter(adapter_config(str(tmp_path), None))


def test_no_model_travels_between_nodes_for_every_token(loaded):
    assert loaded["whole"] == "alone" and loaded["one node"] == "joint"
    assert loaded["two nodes"].startswith("`ds3_gather_for_generation=False` without")
