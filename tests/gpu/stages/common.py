# SPDX-License-Identifier: Apache-2.0

"""What the stages share: models, examples, and how a stage says what it found. Needs torch and transformers."""

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

import trl_nlac
from trl_nlac.types import Prompt, TrainingExample


TINY = str(Path(trl_nlac.__file__).parent / "tiny_model")
# Qwen2.5's sizes; "small" is for a CPU.
SIZES = {
    "small": dict(
        hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=1000, tie_word_embeddings=True,
    ),
    "0.5b": dict(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True,
    ),
    "7b": dict(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False,
    ),
}  # fmt: skip


class LeftOut(Exception):
    """A stage cannot run on this device; the message says why."""


def config_of(size: str) -> Qwen2Config:
    return Qwen2Config(**SIZES[size], max_position_embeddings=32768)


def make_model(size: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Make a model of random weights, of a size by name."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(size), dtype=dtype, attn_implementation="sdpa")
    return model.to(device)


def make_examples(turns: int, turn: int, answer: int, vocabulary: int, seed: int = 0) -> list[TrainingExample]:
    """Make two samples of each turn of an episode, after the episode up to there."""
    rng = random.Random(seed)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(rng.randrange(2, vocabulary) for _ in range(number))

    trunk = list(tokens(turns * turn))
    return [
        TrainingExample(loss, Prompt.of(trunk[: turn * (i + 1)]), tokens(answer), 1.0, i)
        for i in range(turns)
        for loss in ("critic", "policy")
    ]


def options_of_run(device: torch.device, bf16: bool = False) -> SimpleNamespace:
    """What a model's trial reads of a trainer's options."""
    return SimpleNamespace(device=device, bf16=bf16, fp16=False, torch_compile=False, router_aux_loss_coef=0.0)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def peak_of(device: torch.device) -> Iterator[dict[str, int]]:
    """Measure the largest number of bytes that this context allocates on a GPU; 0 elsewhere."""
    found = {"bytes": 0}
    if device.type != "cuda":
        yield found
        return
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    yield found
    synchronize(device)
    found["bytes"] = torch.cuda.max_memory_allocated(device) - before


def seconds_of(work: Callable[[], object], device: torch.device, runs: int = 3) -> float:
    """Time the fastest of some runs, after one that warms up."""
    times = []
    for _ in range(runs + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def main(run: Callable[..., dict]) -> None:
    """Run a stage, and print what it found, or why it cannot run here, as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", nargs="*")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a CPU")
    args = parser.parse_args()
    if args.device.startswith("standin"):
        from helpers import standin  # which makes the device

        assert standin.NAME in args.device
        os.environ["ACCELERATE_TORCH_DEVICE"] = args.device  # for trainers
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        if args.device.startswith("cuda") and not torch.cuda.is_available():
            raise LeftOut("there is no GPU")
        result = {"found": run(torch.device(args.device), args.small, *args.kind)}
    except LeftOut as error:
        result = {"left out": str(error)}
    print(json.dumps(result), flush=True)
