# SPDX-License-Identifier: Apache-2.0

"""
One gradient step on the samples of a long episode: supervised tokens a second, and memory. All sides train the same
model on the same samples: two for each turn, as of critic and policy, that share the episode up to there.

- `tree`: the samples of the step as one prefix tree
- `separate`: one by one, padded in pairs
- `sft`: TRL's `SFTTrainer` with packing

A process of its own runs the longest pass of a step for its peak memory. In the one that is timed the allocator keeps
the memory that was freed, as that of a GPU does: on a CPU, mapping it anew costs as much as computing.

`kv_rows_per_token` counts the rows of keys that an attention holds in memory, its copies among them, for each token.

    python -m benchmarks.systems.train_step --json benchmarks/results/train_step.json

The file keeps what it has; a run that was stopped goes on where it was.
"""

import argparse
import json
import tempfile
import time
from statistics import median

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import SFTConfig, SFTTrainer

from benchmarks import reporting
from trl_nlac import NLACConfig
from trl_nlac.method.batches import NLACCollator, split
from trl_nlac.method.losses import batch_losses
from trl_nlac.training.tree_attention import pieces, start_sharing
from trl_nlac.types import Prompt, TrainingExample


SIDES = ("tree", "separate", "sft")
LONG = 8  # turns from which a step takes so long that it is run once
# In `1layer` attention costs as much beside the rest as in a layer of `7b`, where the rest is 28,000 times as dear for
# a token as attention for a pair of tokens. In `2m` attention is most of the cost.
SIZES = {
    "1layer": dict(
        hidden_size=128, intermediate_size=21000, num_hidden_layers=1, num_attention_heads=2, vocab_size=4096
    ),
    "2m": dict(hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=4, vocab_size=4096),
    "0.5b": dict(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, vocab_size=151936
    ),
    "7b": dict(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, vocab_size=152064
    ),
}


def make_model(size: str, dtype: str) -> LlamaForCausalLM:
    """Make a model of random weights."""
    torch.manual_seed(0)
    sizes = SIZES[size]
    heads = sizes["num_attention_heads"]
    config = LlamaConfig(**sizes, num_key_value_heads=heads // 2, max_position_embeddings=2**16)
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa").to(device)
    return model.to(getattr(torch, dtype))


def make_examples(turns: int, turn: int, branch: int, vocabulary: int) -> list[TrainingExample]:
    """Make two samples of each turn, after the episode up to there."""
    generator = torch.Generator().manual_seed(0)
    trunk = torch.randint(vocabulary, (turns * turn,), generator=generator).tolist()
    return [
        TrainingExample(
            loss,
            Prompt.of(trunk[: turn * (i + 1)]),
            tuple(torch.randint(vocabulary, (branch,), generator=generator).tolist()),
        )
        for i in range(turns)
        for loss in ("critic", "policy")
    ]


SHAPE = ("turn", "branch", "size", "dtype", "repetitions", "threads")
# For glibc, in processes that are timed.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


def seconds_of_ours(model: LlamaForCausalLM, examples: list[TrainingExample], shares: bool, runs: int) -> list[float]:
    """Time forward and backward passes of steps, after one pass over the longest samples, which maps its memory."""
    with tempfile.TemporaryDirectory() as folder:
        args = NLACConfig(output_dir=folder, bf16=False, use_cpu=model.device.type == "cpu", report_to="none")
    if shares and not start_sharing(model, model.config, args):
        raise RuntimeError("The model cannot read trees.")
    collate = NLACCollator(0, shares, keeps_logits=False, device=model.device)
    passes = [examples] if shares else split(examples, len(examples) // 2)
    batch_losses(model, collate(passes[-1])).sum().backward()
    times = []
    for _ in range(runs):
        model.zero_grad()
        start = time.perf_counter()
        for examples_of_pass in reversed(passes):  # none needs more memory than those before
            batch_losses(model, collate(examples_of_pass)).sum().backward()
        if model.device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(time.perf_counter() - start)
    return times


class StepTimes(TrainerCallback):
    """Times steps of a trainer."""

    def __init__(self):
        self.times: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs):
        self.times.append(time.perf_counter())

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self.times[-1] = time.perf_counter() - self.times[-1]


def seconds_of_sft(model: LlamaForCausalLM, examples: list[TrainingExample], runs: int) -> list[float]:
    """Time the steps of `SFTTrainer`: the packed rows of all samples are one step. Without `runs` one row is run."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    rows = [
        {
            "input_ids": [*example.prompt.ids, *example.completion_ids],
            "completion_mask": [0] * len(example.prompt.ids) + [1] * len(example.completion_ids),
        }
        for example in examples
    ]
    longest = max(len(row["input_ids"]) for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        options = dict(
            output_dir=folder,
            packing=True,
            max_length=longest,
            completion_only_loss=True,
            per_device_train_batch_size=1,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=model.device.type == "cpu",
            learning_rate=0.0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        number = len(SFTTrainer(model, SFTConfig(**options), train_dataset=Dataset.from_list(rows),
                                processing_class=tokenizer).train_dataset)  # fmt: skip
        times = StepTimes()
        options |= dict(gradient_accumulation_steps=number, num_train_epochs=runs) if runs else dict(max_steps=1)
        trainer = SFTTrainer(
            model,
            SFTConfig(**options),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[times],
        )
        trainer.train()
    return times.times


def run(side: str, turns: int, args: argparse.Namespace) -> dict[str, float]:
    """Run one side in this process: its time, or with `args.memory` its peak memory."""
    if args.threads:
        torch.set_num_threads(args.threads)
    model = make_model(args.size, args.dtype)
    examples = make_examples(turns, args.turn, args.branch, model.config.vocab_size)
    before = _peak_bytes(model.device)
    runs = 0 if args.memory else 1 if turns >= LONG else args.repetitions
    if side == "sft":
        times = seconds_of_sft(model, examples, runs)
    else:
        times = seconds_of_ours(model, examples, side == "tree", runs)
    if args.memory:
        return {"peak_bytes": _peak_bytes(model.device) - before}
    seconds = median(times)
    supervised = sum(len(example.completion_ids) for example in examples)
    sequences = [[*e.prompt.ids, *e.completion_ids] for e in examples]
    tree = NLACCollator(0, True)(examples).tokens.inputs["prefix_tree"]
    return {
        "seconds": seconds,
        "supervised_tokens_per_second": supervised / seconds,
        "tokens": len(tree) if side == "tree" else sum(map(len, sequences)),
    }


def measure(side: str, turns: int, args: argparse.Namespace) -> dict[str, float]:
    """Measure one side in processes of its own: its time, then its memory."""
    words = ["--cell", side, turns, *reporting.same_options(args, *SHAPE)]
    timed = reporting.alone("benchmarks.systems.train_step", *words, **KEEP_MEMORY)
    return {
        "side": side,
        "turns": turns,
        **timed,
        **reporting.alone("benchmarks.systems.train_step", *words, "--memory"),
    }


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return reporting.peak_bytes()
    return torch.accelerator.max_memory_allocated()


def summary(cells: list[dict], args: argparse.Namespace) -> dict[str, float]:
    """Compare the sides."""
    of = {(cell["side"], cell["turns"]): cell for cell in cells}
    trees = {turns: of["tree", turns] for side, turns in of if side == "tree"}
    found = {}
    for turns in trees:
        for other in ("separate", "sft"):
            if (other, turns) in of:
                key = f"tree_speedup_{turns}" if other == "separate" else f"tree_speedup_{turns}_over_{other}"
                found[key] = of[other, turns]["seconds"] / trees[turns]["seconds"]
                found[f"tokens_ratio_{turns}"] = of[other, turns]["tokens"] / trees[turns]["tokens"]
    if ("sft", 1) in of:
        rates = [of[side, 1]["supervised_tokens_per_second"] for side in ("tree", "separate", "sft")]
        found["single_turn_ratio_to_sft"], found["separate_single_turn_ratio_to_sft"] = (
            rates[0] / rates[2],
            rates[1] / rates[2],
        )
    first, last = min(trees), max(trees)
    if first < last:
        growth = torch.tensor([trees[turns]["seconds"] / trees[first]["seconds"] for turns in (last,)]).log()
        found["cost_exponent"] = float(growth / torch.tensor(last / first).log())
    if {8, 32} <= trees.keys():
        per_token = [trees[turns]["peak_bytes"] / trees[turns]["tokens"] for turns in (8, 32)]
        found["peak_bytes_per_token_growth"] = per_token[1] / per_token[0]
    examples = make_examples(last, args.turn, args.branch, SIZES[args.size]["vocab_size"])
    tree = NLACCollator(0, True)(examples).tokens.inputs["prefix_tree"]
    copied = sum(len(keys) for _, keys, _, _ in pieces(tree) if not isinstance(keys, slice))  # a slice is a view
    found["kv_rows_per_token"] = (len(tree) + copied) / len(tree)
    return found


def main() -> None:
    parser = reporting.parser(__doc__)
    parser.add_argument("--turns", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--turn", type=int, default=512, help="tokens of a turn")
    parser.add_argument("--branch", type=int, default=128, help="tokens of a completion")
    parser.add_argument("--size", default="1layer", choices=SIZES)
    parser.add_argument("--dtype", default="bfloat16" if torch.accelerator.is_available() else "float32")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cell", nargs=2, metavar=("SIDE", "TURNS"), help="run this alone, and print what it took")
    parser.add_argument("--memory", action="store_true", help="with --cell: its memory, not its time")
    args = parser.parse_args()
    if args.cell:
        print(json.dumps(run(args.cell[0], int(args.cell[1]), args)))
        return
    shape = {name: vars(args)[name] for name in SHAPE}
    versions = reporting.setting("torch", "transformers", "trl")
    earlier = json.loads(args.json.read_text()) if args.json is not None and args.json.exists() else {}
    cells = earlier["cells"] if earlier.get("shape") == shape else []
    known = {(cell["side"], cell["turns"]) for cell in cells}
    for turns in args.turns:
        for side in args.sides:
            if (side, turns) not in known:
                cells.append(measure(side, turns, args))
                print(json.dumps(cells[-1]), flush=True)
                reporting.write({**versions, "shape": shape, "cells": cells}, args.json)
    report = {**versions, "shape": shape, "summary": summary(cells, args), "cells": cells}
    reporting.write(report, args.json)
    print(json.dumps(report["summary"], indent=2))


if __name__ == "__main__":
    main()
