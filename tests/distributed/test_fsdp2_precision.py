# SPDX-License-Identifier: Apache-2.0

"""Under FSDP2 with mixed precision, as Accelerate sets it up on GPUs, losses are those of a whole model."""

from helpers.launch import launch_script


SCRIPT = """
import copy
from types import SimpleNamespace

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from transformers import AutoModelForCausalLM

from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses
from trl_nlac.shards import gathered_bytes, kept_gathered
from trl_nlac.training.tree_attention import start_sharing
from trl_nlac.types import Prompt, TrainingExample

accelerator = Accelerator(cpu=True)
accelerator.state.distributed_type = DistributedType.FSDP
accelerator.state.fsdp_plugin = plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
)
accelerator.state._mixed_precision = "bf16"
plugin.set_mixed_precision("bf16")  # as an accelerator does that finds the plugin itself
dtype = plugin.mixed_precision_policy.param_dtype
assert dtype == plugin.mixed_precision_policy.output_dtype == torch.bfloat16

sharded = AutoModelForCausalLM.from_pretrained(TINY_MODEL, attn_implementation="sdpa")
whole = copy.deepcopy(sharded).to(torch.bfloat16)
sharded = fsdp2_prepare_model(accelerator, sharded)


def ids(number):
    return tuple(torch.randint(90, (number,), generator=torch.Generator().manual_seed(number)).tolist())


# A count of more than 256 tokens has no place in bfloat16.
lengths = (100, 300, 450)
examples = [TrainingExample("critic", Prompt.of(ids(8)), ids(n), transition_id=n) for n in lengths]
batch = NLACCollator(0, keeps_logits=False)(examples)
for i in range(len(lengths)):
    found = []
    for model in (whole, sharded):
        model.train()
        model.zero_grad()
        losses = batch_losses(model, batch)
        assert losses.dtype == torch.float32
        losses[i].backward()
        gradient = model.model.norm.weight.grad
        gradient = gradient.full_tensor() if model is sharded else gradient
        found.append(torch.stack([losses[i].detach(), gradient.float().norm()]))
    assert torch.allclose(*found, rtol=0.02), (lengths[i], found)

assert gathered_bytes(sharded, None) == 2 * gathered_bytes(sharded, dtype) > 0
with kept_gathered(sharded, bool(plugin.reshard_after_forward), dtype):
    parameters = {id(p): p for p in sharded.parameters()}.values()
    gathered = sum(p.numel() * p.element_size() for p in parameters)
assert gathered == gathered_bytes(sharded, dtype), gathered

options = SimpleNamespace(
    torch_compile=False, device=torch.device("cpu"), bf16=True, fp16=False, router_aux_loss_coef=0.0
)
print(f"done {start_sharing(sharded, sharded.config, options)}\\n", end="", flush=True)
torch.distributed.destroy_process_group()
"""


def test_losses_and_prefix_trees(tmp_path):
    assert launch_script(tmp_path, SCRIPT).count("done True") == 2
