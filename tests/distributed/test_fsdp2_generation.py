# SPDX-License-Identifier: Apache-2.0

"""Under FSDP2 a session gathers the model once, and each process generates alone."""

from helpers.launch import launch_script


SCRIPT = """
import torch
import torch.distributed as dist
from accelerate import Accelerator, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_nlac import TargetWeights
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.generator import Sampling
from trl_nlac.generation.transformers import TransformersGenerator


class Gathers(TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.number += "c10d" in str(func) and "allgather" in str(func)
        return func(*args, **(kwargs or {}))


accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
accelerator.state.distributed_type = DistributedType.FSDP
accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
whole = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
mesh = init_device_mesh("cpu", (2,))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
generators = [TransformersGenerator(a, tokenizer, [tokenizer.eos_token_id], 4) for a in (accelerator, None)]
prompts, sampling = [[5, 6, 7], [8, 9], [10, 11, 12, 13]], Sampling(16, temperature=0.0)


def said(model, generator, number):
    with generator.session(model):
        answers = [answer.token_ids for answer in generator.generate(prompts[:number], sampling, [0] * number)]
        return answers, generator.score(prompts[:number], answers)


def check(name):
    # One process asks for nothing, and the other does not wait for it.
    number = 3 if rank == 0 else 0
    with Gathers() as gathers:
        answers, scores = said(model, generators[0], number)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters()), name
    expected = said(whole, generators[1], number)
    assert answers == expected[0], name
    assert torch.tensor(scores).allclose(torch.tensor(expected[1]), rtol=1e-5), name
    assert gathers.number in (0, len(model.model.layers) + 1), gathers.number
    return answers


own = check("policy")
target = TargetWeights(model)
for name, average in target.state_dict().items():
    average.mul_(1.5 if "embed" in name else 1)
with torch.no_grad():
    whole.model.embed_tokens.weight.mul_(1.5)
with target.swapped_into(model):
    other = check("target")
with torch.no_grad():
    whole.model.embed_tokens.weight.div_(1.5)
assert check("policy again") == own
assert rank or own != other
out = model(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss
out.backward()
assert all(isinstance(parameter.grad, DTensor) for parameter in model.parameters())
dist.barrier()
print(f"done {rank}\\n", end="", flush=True)
"""


def test_generation(tmp_path):
    printed = launch_script(tmp_path, SCRIPT)
    assert "done 0" in printed and "done 1" in printed
