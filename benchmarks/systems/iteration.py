# SPDX-License-Identifier: Apache-2.0

"""
Where the time of an iteration goes, with and without what computes each token once (prefix trees and the prefix
cache). Three runs, all on a CPU:

- `quickstart`: the iterations of examples/scripts/nlac_quickstart.py, without evaluation
- `8_turns`: the tiny model in episodes of 8 turns, of which 64 transitions are trained on
- `smollm2`: SmolLM2-135M-Instruct with LoRA and the default prompts (`make real-model`)

Every run is a process of its own: once as it is, for its seconds, and once under a profiler, for the shares of the
phases and for the functions that take the most time themselves.

python -m benchmarks.systems.iteration --json benchmarks/results/iteration.json --page benchmarks/profile.md
"""

import argparse
import cProfile
import json
import pstats
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig

from benchmarks import reporting
from benchmarks.real_model import real_model_path
from trl_nlac import NLACConfig, NLACPrompts, NLACTrainer
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import (
    COMPACT_PROMPTS,
    TINY_MODEL,
    make_environment,
    make_rehearsal_dataset,
    make_tasks,
)


ARMS = ("before", "after")
# A phase is the function that contains it, as the profiler names it.
PHASES = {
    "act": ("rollout.py", "play_episodes"),
    "refine": ("refinement.py", "refine_actions"),
    "targets": ("targets.py", "current_targets"),
    "make batches": ("nlac_trainer.py", "_make_batches"),
    "pad or fold": ("batches.py", "__call__"),
    "forward": ("losses.py", "batch_losses"),
    "backward": ("accelerator.py", "backward"),
    "optimizer": ("optimizer.py", "step"),
    "target weights": ("target_weights.py", "update"),
    "checkpoint": ("nlac_trainer.py", "_save_checkpoint"),
}
NUM_FUNCTIONS = 8


class Words:
    """Observations of six words, for 8 turns."""

    def __init__(self):
        self.words = make_tasks("service_desk", 0)[0].requests

    def reset(self, number: int) -> str:
        self.rng, self.turn = random.Random(number), 0
        return self.observation()

    def observation(self) -> str:
        return " ".join(self.rng.choices(self.words, k=6))

    def step(self, action: str) -> StepResult:
        self.turn += 1
        return StepResult(self.observation(), reward=1.0, terminated=self.turn == 8)


def quickstart(make_args: Callable[..., NLACConfig]) -> NLACTrainer:
    desk, tasks = make_tasks("service_desk", 0)
    return NLACTrainer(
        model=TINY_MODEL,
        args=make_args(
            max_steps=40,
            learning_rate=1e-3,
            per_device_train_batch_size=32,
            samples_per_iteration=128,
            episodes_per_iteration=4,
            max_generation_batch_size=512,
            max_completion_length=64,
            max_turns=2,
            bootstrap="implicit",
            rehearsal_ratio=0.5,
            min_p=0.05,
            role_sampling={"successor": {"temperature": 0.5}, "backup": {"temperature": 0.0}},
        ),
        train_dataset=tasks,
        environment_factory=lambda: make_environment(desk),
        prompts=COMPACT_PROMPTS,
        rehearsal_dataset=make_rehearsal_dataset("service_desk"),
    )


def turns_8(make_args: Callable[..., NLACConfig]) -> NLACTrainer:
    return NLACTrainer(
        model=TINY_MODEL,
        args=make_args(
            max_steps=12,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            samples_per_iteration=64,
            episodes_per_iteration=8,
            max_generation_batch_size=512,
            max_completion_length=40,
            max_turns=8,
        ),
        train_dataset=Dataset.from_dict({"number": list(range(64))}),
        environment_factory=Words,
        prompts=COMPACT_PROMPTS,
    )


def smollm2(make_args: Callable[..., NLACConfig]) -> NLACTrainer:
    desk, tasks = make_tasks("service_desk", 0)
    return NLACTrainer(
        model=str(real_model_path()),
        args=make_args(
            max_steps=2,
            per_device_train_batch_size=8,
            samples_per_iteration=8,
            episodes_per_iteration=4,
            max_completion_length=48,
            max_turns=2,
            model_init_kwargs={"dtype": "float32"},
        ),
        train_dataset=tasks,
        environment_factory=lambda: make_environment(desk),
        prompts=NLACPrompts(),
        peft_config=LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    )


RUNS = {"quickstart": quickstart, "8_turns": turns_8, "smollm2": smollm2}


def measure(run: str, arm: str, is_profiled: bool) -> dict:
    """Train once; returns the seconds, or with a profiler those of the phases and functions."""
    with tempfile.TemporaryDirectory() as folder:

        def make_args(**settings) -> NLACConfig:
            return NLACConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                save_strategy="no",
                report_to="none",
                action_format="text",
                disable_tqdm=True,
                **settings,
            )

        trainer = RUNS[run](make_args)
        if arm == "before":
            trainer.shares_prefixes, trainer.roles.generator.prefix_cache_memory = False, 0.0
        profile = cProfile.Profile()
        start = time.perf_counter()
        if is_profiled:
            profile.runcall(trainer.train)
        else:
            trainer.train()
        seconds = time.perf_counter() - start
    if not is_profiled:
        return {"seconds": seconds, "tokens": trainer.state.num_input_tokens_seen}
    functions = pstats.Stats(profile).stats  # (file, line, name) to (calls, calls, own seconds, seconds, callers)
    named = {(Path(file).name, name): values for (file, _, name), values in functions.items()}
    own = sorted(functions.items(), key=lambda item: -item[1][2])[:NUM_FUNCTIONS]
    return {
        "profiled_seconds": seconds,
        "phases": {phase: named[function][3] for phase, function in PHASES.items() if function in named},
        "functions": {name: {"seconds": of[2], "calls": of[1]} for (_, _, name), of in own},
    }


def page(cells: list[dict]) -> str:
    """Write the tables."""
    lines = []
    for run in RUNS:
        of = {cell["arm"]: cell for cell in cells if cell["run"] == run}
        if of.keys() != set(ARMS):
            continue
        before, after = (of[arm] for arm in ARMS)
        lines += [
            f"### {run}",
            "",
            f"{before['seconds']:.1f} s before, {after['seconds']:.1f} s after: "
            f"{before['seconds'] / after['seconds']:.2f} times as fast.",
            "",
            "| phase | before (s) | after (s) |",
            "|---|---|---|",
        ]
        for phase in PHASES:
            if phase in before["phases"]:
                lines.append(f"| {phase} | {before['phases'][phase]:.1f} | {after['phases'][phase]:.1f} |")
        rest = [cell["profiled_seconds"] - sum(cell["phases"].values()) for cell in (before, after)]
        lines += [f"| other | {rest[0]:.1f} | {rest[1]:.1f} |", ""]
        lines += ["| function, after | own seconds | calls |", "|---|---|---|"]
        for name, values in after["functions"].items():
            lines.append(f"| `{name}` | {values['seconds']:.1f} | {values['calls']:,} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--cell", nargs=3, metavar=("RUN", "ARM", "PROFILED"), help="measure this alone, and print it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.cell:
        run, arm, is_profiled = args.cell
        print(json.dumps(measure(run, arm, is_profiled == "True")))
        return
    cells = []
    for run in args.runs:
        for arm in ARMS:
            cell = {"run": run, "arm": arm}
            for is_profiled in (False, True):
                words = [sys.executable, "-m", "benchmarks.systems.iteration", "--cell", run, arm, str(is_profiled)]
                output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
                cell |= json.loads(output.splitlines()[-1])
            cells.append(cell)
            print(json.dumps(cell), flush=True)
    report = {
        **reporting.setting("torch", "transformers", "trl", threads=torch.get_num_threads()),
        "speedup": {run: cells[2 * i]["seconds"] / cells[2 * i + 1]["seconds"] for i, run in enumerate(args.runs)},
        "cells": cells,
    }
    reporting.write(report, args.json)
    if args.page is not None:
        reporting.insert(page(cells), args.page, "systems/iteration.py")


if __name__ == "__main__":
    main()
