# SPDX-License-Identifier: Apache-2.0

"""
Peak memory of the loss: bytes for each token of a micro-batch and each word of the vocabulary, for samples of which 94
% are prompt. `distill` learns from a teacher's distributions (`policy_loss_type="distill"`). `all_logits` is the loss
of the logits of all tokens, as a model returns them by default.

Each side runs in a process of its own, once with a large vocabulary and once with a tiny one; what both need is not
counted, nor are the weights and their gradients.

    python -m benchmarks.systems.loss_memory --json benchmarks/results/loss_memory.json
"""

import argparse
import os
import resource
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.reporting import setting, write
from trl_nlac.method.batches import NLACCollator
from trl_nlac.method.losses import batch_losses
from trl_nlac.types import Prompt, TrainingExample


SIDES = ("answers", "distill", "all_logits")
PROMPT_SHARE, SAMPLES = 0.94, 4
HIDDEN = 16


def peak_bytes(side: str, tokens: int, vocabulary: int) -> int:
    """Measure the peak of a forward and a backward pass, without weights and their gradients."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=tokens,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    length = tokens // SAMPLES
    start = int(PROMPT_SHARE * length)
    examples = [
        TrainingExample(
            "critic",
            Prompt.of(ids[:start]),
            tuple(ids[start:]),
            teacher_prompt=Prompt.of(ids[:start][::-1]) if side == "distill" else None,
        )
        for ids in torch.randint(vocabulary, (SAMPLES, length)).tolist()
    ]
    batch = NLACCollator(0, keeps_logits=False)(examples)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if side == "all_logits":
        labels = batch.tokens.inputs["input_ids"].clone()
        labels[:, :start] = -100
        logits = model(**batch.tokens.inputs, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
    else:
        loss = batch_losses(model, batch, nullcontext if side == "distill" else None).sum()
    loss.backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--cell", nargs=2, metavar=("SIDE", "VOCABULARY"), help="measure this alone, and print it")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.cell:
        print(peak_bytes(args.cell[0], args.tokens, int(args.cell[1])))
        return
    sides = {}
    for side in SIDES:
        peaks = []
        for vocabulary in (args.vocabulary, 32):
            words = [sys.executable, "-m", "benchmarks.systems.loss_memory", "--tokens", str(args.tokens)]
            words += ["--cell", side, str(vocabulary)]
            # So that glibc returns memory that is freed, and the peak is that of what is in use.
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            run = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            peaks.append(int(run.stdout.splitlines()[-1]))
        sides[side] = {
            "peak_bytes": peaks,
            "bytes_per_token_word": (peaks[0] - peaks[1]) / args.tokens / args.vocabulary,
        }
        print(side, sides[side], flush=True)
    shape = {"tokens": args.tokens, "vocabulary": args.vocabulary, "prompt_share": PROMPT_SHARE, "dtype": "float32"}
    found = sides["answers"]["bytes_per_token_word"]
    report = {**setting("torch", "transformers"), "shape": shape, "bytes_per_token_word": found, "sides": sides}
    write(report, args.json)


if __name__ == "__main__":
    main()
