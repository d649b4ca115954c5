# SPDX-License-Identifier: Apache-2.0

"""
Peaks of memory in a forward and backward pass of a model's losses, real on the CPU, or counted in tensors without
data. Gradients are there before.

python peaks.py CASE ...    # MODEL,DATA,KIND,LOADED,ADAPTERS,CHECKPOINTING,PROMPT,ANSWER
"""

import json
import os
import sys
import weakref
from contextlib import nullcontext
from functools import partial
from itertools import accumulate


os.environ["TRANSFORMERS_SDPA_FORCE_GQA"] = "1"  # as on a GPU, where keys and values are not repeated

import torch  # noqa: E402
from accelerate import init_empty_weights  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config  # noqa: E402

from trl_nlac.method.batches import NLACCollator  # noqa: E402
from trl_nlac.method.losses import batch_losses  # noqa: E402
from trl_nlac.planning.memory import Precision, activations, loss_bytes  # noqa: E402
from trl_nlac.planning.shape import model_shape  # noqa: E402
from trl_nlac.types import Prompt, TrainingExample  # noqa: E402


def _sizes(
    layers: int, vocabulary: int, hidden: int, width: int, heads: int, key_value_heads: int, tied: bool
) -> dict:
    return {
        **dict(num_hidden_layers=layers, vocab_size=vocabulary, hidden_size=hidden, intermediate_size=width),
        **dict(num_attention_heads=heads, num_key_value_heads=key_value_heads, tie_word_embeddings=tied),
        **dict(max_position_embeddings=32768),
    }


# "45m" is "135m" with ten of its 30 layers, "0.5b" has eight of 24, and "7b" four of 28.
CONFIGS = {
    "tiny": LlamaConfig(**_sizes(4, 512, 128, 384, 4, 2, False)),
    "45m": LlamaConfig(**_sizes(10, 49152, 576, 1536, 9, 3, True)),
    "135m": LlamaConfig(**_sizes(30, 49152, 576, 1536, 9, 3, True)),
    "0.5b": Qwen2Config(**_sizes(8, 151936, 896, 4864, 14, 2, True)),
    "7b": Qwen2Config(**_sizes(4, 152064, 3584, 18944, 28, 4, False)),
}
ADAPTER = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")


class Live(TorchDispatchMode):
    """Counts the bytes of tensors while they live, except of known ones."""

    def __init__(self, known: list[torch.Tensor]):
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.sizes: dict[int, int] = {}
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.sizes and key not in self.known:
                    self.sizes[key] = storage.nbytes()
                    self.bytes += storage.nbytes()
                    weakref.finalize(storage, self.drop, key)
        self.peak = max(self.peak, self.bytes)
        return output

    def drop(self, key: int) -> None:
        self.bytes -= self.sizes.pop(key)


def make_model(name: str, kind: str, loaded: int, adapters: bool, checkpointing: bool, make) -> torch.nn.Module:
    with init_empty_weights():
        dtype = {4: torch.float32, 2: torch.bfloat16}[loaded]
        model = AutoModelForCausalLM.from_config(CONFIGS[name], dtype=dtype, attn_implementation="sdpa")
    model.tie_weights()
    if adapters:
        with init_empty_weights():
            model = get_peft_model(model, ADAPTER)
    if kind == "zero3":
        model.to(torch.bfloat16)
    with make():
        made: dict[int, torch.nn.Parameter] = {}
        for module in model.modules():
            for key, old in list(module._parameters.items()):
                if old is not None:
                    new = torch.nn.Parameter(torch.full(old.shape, 0.01, dtype=old.dtype), old.requires_grad)
                    module._parameters[key] = made.setdefault(id(old), new)
            for key, old in list(module._buffers.items()):
                if old is not None:
                    module._buffers[key] = torch.full(old.shape, 0.01, dtype=old.dtype)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if adapters:
            model.enable_input_require_grads()
    return model.train()


def measure(
    name: str, data: str, kind: str, loaded: int, adapters: bool, checkpointing: bool, prompt: int, answer: int
):
    fake = FakeTensorMode(allow_non_fake_inputs=True) if data == "fake" else None
    make = nullcontext if fake is None else lambda: fake
    model = make_model(name, kind, loaded, adapters, checkpointing, make)
    if kind == "none":  # as Accelerate does
        model.forward = partial(_in_half_precision, model.forward)
    examples = [
        TrainingExample(loss, Prompt.of([5] * prompt), (token,) * answer, 1.0, 0)
        for loss, token in (("critic", 1), ("policy", 2))
    ]
    batch = NLACCollator(0, keeps_logits=False)(examples)
    if fake is not None:  # transformers takes such a mask for complete, and makes none
        batch.tokens.inputs["attention_mask"] = torch.ones(1, 1, 1, 1)

    def step() -> None:
        batch_losses(model, batch).sum().backward()

    with make():
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        if fake is not None:
            with Live([*model.parameters(), *(parameter.grad for parameter in trained)]) as live:
                step()
            return live.peak
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def _in_half_precision(forward, *args, **kwargs):
    with torch.autocast("cpu", torch.bfloat16):
        return forward(*args, **kwargs)


def expect(name: str, kind: str, loaded: int, adapters: bool, checkpointing: bool, prompt: int, answer: int) -> float:
    shape = model_shape(CONFIGS[name], ADAPTER if adapters else None)
    precision = Precision.of("none" if kind == "plain" else kind, loaded, kind != "plain", adapters)
    passing = activations(shape, precision, 2 * (prompt + answer), 2 * answer, checkpointing)
    return max(passing.peaks(*loss_bytes(shape, precision, 2 * answer)).values())


if __name__ == "__main__":
    for case in sys.argv[1:]:
        name, data, kind, loaded, adapters, checkpointing, prompt, answer = case.split(",")
        options = (kind, int(loaded), adapters == "lora", checkpointing == "checkpointed", int(prompt), int(answer))
        result = {"case": case, "measured": measure(name, data, *options), "planned": expect(name, *options)}
        print(json.dumps(result), flush=True)
