# SPDX-License-Identifier: Apache-2.0

"""
NLAC and other methods with a real model on desks whose rules stand in a handbook: what is learned on 200 desks, on 50
that were never seen.

    python -m benchmarks.real_learning.generalisation --folder runs/handbook

First the roles are warmed up on other desks, see `benchmarks/real_learning/warm_up.py`, and the adapter is merged into
the model, with which every method begins. Cells that exist are not run again. With `--quotes` and another folder the
critic is taught to quote the rule that it judges by.
"""

import argparse
import json
import random
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from peft import LoraConfig
from transformers import AutoTokenizer

from benchmarks.learning.figures.tables import Tables
from benchmarks.learning.methods import grpo, nlac, rft
from benchmarks.learning.methods.base import at_the_start, play_base
from benchmarks.learning.tasks import Instances, LearningTask, handbook_rows
from benchmarks.real_learning.desk import QUOTING_PROMPTS, HandbookDesk, QuotingReader, Reader, known_desk
from benchmarks.real_learning.warm_up import (
    BF16,
    DTYPE,
    LORA,
    NLAC,
    ROLES,
    load,
    read_rehearsal,
    warm_up,
    write_rehearsal,
)
from benchmarks.real_model import real_model_path
from benchmarks.reporting import setting, write
from trl_nlac import NLACConfig, NLACPrompts
from trl_nlac.environments.embedded.names import CUSTOMERS, HELD_OUT_CUSTOMERS


NUM_KNOWN_DESKS, NUM_TRAINING_DESKS, NUM_UNSEEN_DESKS = 64, 200, 50
NUM_EVALUATED_REQUESTS = 2  # of each desk
BUDGET = 320  # environment steps
NUM_EVALUATIONS = 4
ACTING = {
    **ROLES,
    "use_cpu": not torch.accelerator.is_available(),
    "bf16": BF16,
    "gradient_checkpointing": False,
    "model_init_kwargs": {"dtype": DTYPE},
    **dict(report_to="none", save_strategy="no", disable_tqdm=True, overwrite_output_dir=True),
    **{name: NLAC[name] for name in ("num_eval_episodes", "num_eval_critiques")},
}
TRAINING = {name: value for name, value in NLAC.items() if name not in ACTING}
# The same learning rate, and about as many gradient steps, of as many samples. They have no roles to keep.
ON_POLICY = {
    **dict(learning_rate=TRAINING["learning_rate"], episodes_per_iteration=16, updates_per_iteration=4),
    **dict(micro_batch_size=8, rehearsal_ratio=0.0),
}
METHODS = {
    "nlac": (nlac.train, TRAINING),
    "grpo": (grpo.train, {**ON_POLICY, "num_generations": 4}),
    "rft": (rft.train, {**ON_POLICY, "batch_size": 16, "anchor_ratio": 0.0}),
}
BASES = ("base", "base_refined")


@dataclass(frozen=True)
class Setup:
    """How the roles are asked, and who writes the samples that warm them up."""

    task: str
    teacher: Reader
    max_completion_length: int


PLAIN = Setup("spoken_handbook", Reader(NLACPrompts()), ROLES["max_completion_length"])
QUOTING = Setup("spoken_handbook_quoted", QuotingReader(QUOTING_PROMPTS), 96)


def make_base_model(folder: Path, model: str, setup: Setup, num_transitions: int) -> tuple[Path, Path]:
    """Warm the roles up. Return the folder of the model, and the file of the samples that it was trained on."""
    tasks = handbook_rows(random.Random(0), range(NUM_KNOWN_DESKS), CUSTOMERS, world_of=known_desk)
    rehearsal = write_rehearsal(
        folder,
        setup.teacher,
        tasks,
        partial(HandbookDesk, known_desk),
        num_transitions,
        max_completion_length=setup.max_completion_length,
    )
    path = folder / f"{Path(model).name}-warmed-up"
    if not (path / "config.json").exists():
        merged = load(model, warm_up(folder, model, rehearsal)).merge_and_unload()
        AutoTokenizer.from_pretrained(model).save_pretrained(path)
        merged.save_pretrained(path)
    return path, rehearsal


def make_task(seed: int, model: Path, setup: Setup, rehearsal: Path) -> LearningTask:
    """Make desks to train on, and others to evaluate on."""
    first = 10_000 * (seed + 1)
    training = range(first, first + NUM_TRAINING_DESKS)
    unseen = range(training.stop, training.stop + NUM_UNSEEN_DESKS)

    def evaluated(desks: range, customers: list[str]) -> Instances:
        return Instances(HandbookDesk, handbook_rows(random.Random(0), desks, customers, NUM_EVALUATED_REQUESTS))

    return LearningTask(
        name=setup.task,
        environment_factory=HandbookDesk,
        rows=handbook_rows(random.Random(0), training, CUSTOMERS),
        instances={
            "held_out": evaluated(unseen, HELD_OUT_CUSTOMERS),
            "train": evaluated(training[:NUM_UNSEEN_DESKS], CUSTOMERS),
        },
        model=str(model),
        prompts=setup.teacher.prompts,
        rehearsal=read_rehearsal(rehearsal),
        max_turns=ROLES["max_turns"],
        peft_config=LoraConfig(**LORA),
    )


def run_cell(
    task: LearningTask, setup: Setup, method: str, seed: int, budget: int, runs: Path, num_transitions: int
) -> dict:
    """Train and evaluate one cell."""
    measured_with = setting("torch", "transformers", "trl", "peft", threads=torch.get_num_threads())
    options = {**ACTING, "max_completion_length": setup.max_completion_length}
    acting = NLACConfig(output_dir=str(runs / method / str(seed)), seed=seed, **options)
    interval = max(1, budget // NUM_EVALUATIONS)
    if method in BASES:
        player, settings = play_base(task, acting, refines=method == "base_refined"), {}
        points = [at_the_start(player.evaluate())]
    else:
        train, settings = METHODS[method]
        curve = train(task, acting, budget, interval, **settings)
        player, points = curve.player, curve.points
    final = {"held_out": points[-1], "train": player.evaluate("train")}
    if method != "base_refined":  # its player does not act by `sampling` alone
        final["greedy"] = player.evaluate(sampling=replace(player.roles.samplings["evaluation"], temperature=0.0))
    return {
        "task": task.name,
        "method": method,
        "seed": seed,
        "model": Path(task.model).name,
        "settings": settings,
        "acting": options,
        "command": f"python -m benchmarks.real_learning.generalisation --methods {method} --seeds {seed} "
        f"--budget {budget} --num_transitions {num_transitions} --threads {torch.get_num_threads()}"
        + (" --quotes" if setup is QUOTING else ""),
        "budget": budget,
        "interval": interval,
        **measured_with,
        "points": points,
        "final": final,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(real_model_path()))
    parser.add_argument("--folder", type=Path, default=Path("runs", "handbook"))
    parser.add_argument("--cells", type=Path, default=Path("runs", "handbook_cells"))
    parser.add_argument("--methods", nargs="*", choices=[*METHODS, *BASES], default=[*METHODS, *BASES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--budget", type=int, default=BUDGET, help="environment steps")
    parser.add_argument("--num_transitions", type=int, default=128, help="steps of which the teacher writes")
    parser.add_argument("--quotes", action="store_true", help="teach the critic to quote the rule that it judges by")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    setup = QUOTING if args.quotes else PLAIN
    cells, runs = args.cells / setup.task, args.folder / "cells"
    paths = {cells / method / f"{seed}.json": (method, seed) for seed in args.seeds for method in args.methods}
    missing = {path: cell for path, cell in paths.items() if not path.exists()}
    if missing:
        args.folder.mkdir(parents=True, exist_ok=True)
        model, rehearsal = make_base_model(args.folder, args.model, setup, args.num_transitions)
    for path, (method, seed) in missing.items():
        task = make_task(seed, model, setup, rehearsal)
        write(run_cell(task, setup, method, seed, args.budget, runs, args.num_transitions), path)
    print(Tables([], [json.loads(path.read_text()) for path in paths]).handbook())


if __name__ == "__main__":
    main()
