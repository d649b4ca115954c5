# SPDX-License-Identifier: Apache-2.0

"""
The price of a gradient step. *Its time*, for two samples of each turn of an episode, as of critic and policy, that
share the episode up to there: as one prefix tree, and as separate sequences, padded in pairs. Both sides have the same
weights and run by turns; times are medians. Attention costs as much beside the rest as in a layer of a model of 7B.
*The peak memory of its loss*, computed in chunks, and plainly, of the logits of all tokens, in bytes for each token
and word of the vocabulary: of a process of its own, less the peak with a tiny vocabulary, weights and gradients.

python -m benchmarks.systems.train_step --json benchmarks/results/train_step.json --page docs/source/results_tables.md
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import reporting
from trl_nlac import NLACConfig
from trl_nlac.method.batches import NLACCollator, split
from trl_nlac.method.losses import batch_losses
from trl_nlac.training.tree_attention import start_sharing
from trl_nlac.types import Prompt, TrainingExample


TURNS, TURN, COMPLETION, REPETITIONS = (1, 4, 16), 256, 64, 3
TOKENS, VOCABULARIES = 8192, (32_768, 32)  # 94 % of the tokens are prompts
# For glibc: memory that was freed is kept, as on a GPU; or it is returned, and the peak is of what is in use.
KEEP, RETURN = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}, {"MALLOC_MMAP_THRESHOLD_": "65536"}


def make_model(hidden_size: int, intermediate_size: int, vocab_size: int = 4096) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = dict(hidden_size=hidden_size, intermediate_size=intermediate_size, vocab_size=vocab_size)
    layers = dict(num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=2**16)
    return LlamaForCausalLM(LlamaConfig(**sizes, **layers, attn_implementation="sdpa"))


def make_example(ids: list[int], end: list[int]) -> TrainingExample:
    return TrainingExample("critic", Prompt.of(ids), tuple(end))


def time_of_step(turns: int, turn: int = TURN, completion: int = COMPLETION, repetitions: int = REPETITIONS) -> dict:
    """Measure both sides of one length of episodes, a row of the report."""
    trunk, *ends = torch.randint(4096, (1 + 2 * turns, turns * turn)).tolist()
    examples = [make_example(trunk[: (1 + i // 2) * turn], end[:completion]) for i, end in enumerate(ends)]
    sides = {}
    for side in ("tree", "separate"):
        model, folds = make_model(128, 21_000), side == "tree"
        assert not folds or start_sharing(model, model.config, NLACConfig("none", bf16=False, use_cpu=True))
        passes = [examples] if folds else split(examples, turns)[::-1]  # the longest first: it maps the memory
        sides[side] = model, passes, NLACCollator(0, folds, keeps_logits=False)
    seconds, tokens, losses = {side: [] for side in sides}, {}, {}
    for _ in range(1 + repetitions):  # one more to warm up
        for side, (model, passes, collate) in sides.items():
            model.zero_grad()
            start, tokens[side], losses[side] = time.perf_counter(), 0, 0.0
            for batch in map(collate, passes):
                tokens[side] += batch.tokens.inputs["input_ids"].numel()
                loss = batch_losses(model, batch).sum()
                loss.backward()
                losses[side] += loss.item()
            seconds[side].append(time.perf_counter() - start)
    torch.testing.assert_close(losses["tree"], losses["separate"], rtol=1e-3, atol=0)
    return {"turns": turns, "tokens": tokens, "seconds": {side: median(s[1:]) for side, s in seconds.items()}}


def peak_of_loss(side: str, tokens: int, vocabulary: int) -> int:
    """Measure the peak of a forward and a backward pass in this process, in bytes."""
    model, start = make_model(16, 16, vocabulary), int(0.94 * tokens / 4)
    rows = torch.randint(vocabulary, (4, tokens // 4))
    batch = NLACCollator(0, keeps_logits=False)([make_example(r[:start], r[start:]) for r in rows.tolist()])
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = reporting.resident_bytes("VmHWM")
    if side == "chunked":
        loss = batch_losses(model, batch).sum()
    else:
        logits = model(input_ids=rows, use_cache=False).logits[:, :-1].float().flatten(0, 1)
        labels = rows.where(torch.arange(rows.shape[1]) >= start, -100)
        loss = F.cross_entropy(logits, labels[:, 1:].flatten())
    loss.backward()
    return reporting.resident_bytes("VmHWM") - before


def table(report: dict) -> str:
    """Format a report as Markdown."""
    names = ["turns", "tokens: tree", "separate", "seconds: tree", "separate", "times as fast"]
    rows = []
    for step in report["steps"]:
        tokens, (tree, separate) = step["tokens"].values(), step["seconds"].values()
        rows.append([str(step["turns"]), *(f"{number:,}" for number in tokens), f"{tree:.2f}", f"{separate:.2f}"])
        rows[-1].append(f"{separate / tree:.1f}")
    peaks = "{chunked_bytes_per_token_word:.2f} in chunks, {plain_bytes_per_token_word:.1f} plainly".format(**report)
    return f"{reporting.table(names, rows)}\n\nPeak of the loss, in bytes for each token and word: {peaks}."


def main():
    parser = reporting.parser(__doc__)
    parser.add_argument("--cell", nargs="+", help=argparse.SUPPRESS)  # of the process of one measurement
    parser.add_argument("--page", type=Path, help="Markdown file in which to replace the results")
    args = parser.parse_args()
    if args.cell:
        side, *numbers = args.cell[0], *map(int, args.cell[1:])
        print(json.dumps(time_of_step(*numbers) if side == "step" else peak_of_loss(side, *numbers)))
        return
    this, report = "benchmarks.systems.train_step", reporting.setting("torch", "transformers")
    report["steps"] = [reporting.alone(this, "--cell", "step", turns, **KEEP) for turns in TURNS]
    for side in ("chunked", "plain"):
        large, tiny = (reporting.alone(this, "--cell", side, TOKENS, words, **RETURN) for words in VOCABULARIES)
        report[f"{side}_bytes_per_token_word"] = (large - tiny) / TOKENS / VOCABULARIES[0]
    print(json.dumps(report, indent=2))
    reporting.write(report, args.json)
    if args.page is not None:
        reporting.insert(table(report), args.page, "systems/train_step.py")


if __name__ == "__main__":
    main()
