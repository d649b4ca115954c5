# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""
How long a model keeps its roles, without rehearsal and with its own answers (`rehearsal_source="self"`): optimizer
steps until the first role falls below 0.7 of its start, for the tiny model, which forgets fast. No dataset helps it.

    python -m benchmarks.forgetting --json benchmarks/results/forgetting.json

The file keeps what it has; a run that was stopped goes on where it was.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from transformers import TrainerCallback

from benchmarks.learning.methods.settings import acting_config, default_settings
from benchmarks.learning.run import budget_of
from benchmarks.learning.tasks import make_task
from benchmarks.reporting import setting, write
from trl_nlac import NLACTrainer


ARMS = {"none": {"rehearsal_ratio": 0.0}, "self": {"rehearsal_source": "self"}}
WATCHED = (
    *("policy/format_rate", "critic/format_rate", "backup/format_rate", "refine/format_rate"),
    *("health/backup_fidelity", "health/refine_compliance"),
)
FALL, SMOOTHING, START = 0.7, 0.2, 3  # share of the start; weight of the newest value; iterations that make the start


class FallCallback(TrainerCallback):
    """
    Stop training once a role has fallen, or the environment steps are spent.

    Args:
        budget (`int`):
            Number of environment steps.
    """

    def __init__(self, budget: int):
        self.budget = budget
        self.values: dict[str, list[float]] = {name: [] for name in WATCHED}
        self.levels: dict[str, float] = {}
        self.fallen: str | None = None
        self.trained: NLACTrainer | None = None

    def on_log(self, args, state, control, logs=None, **kwargs):
        for name in WATCHED:
            if name not in logs or self.fallen is not None:
                continue
            values = self.values[name]
            values.append(logs[name])
            start = statistics.mean(values[:START])
            if len(values) <= START:
                self.levels[name] = start
                continue
            self.levels[name] += SMOOTHING * (logs[name] - self.levels[name])
            if self.levels[name] < FALL * start:
                self.fallen = name
        if self.fallen is not None or self.trained.num_environment_steps >= self.budget:
            control.should_training_stop = True


def measure(task_name: str, arm: str, seed: int, folder: Path) -> dict:
    """Train until a role falls."""
    task = make_task(task_name, seed)
    acting = acting_config(task, str(folder / task_name / arm / str(seed)), seed)
    args = replace(acting, max_steps=10**6, **{**default_settings(task, "nlac"), **ARMS[arm]})
    args = replace(args, logging_steps=args.steps_per_iteration // args.gradient_accumulation_steps)
    callback = FallCallback(budget_of(task_name, "nlac"))
    trainer = NLACTrainer(
        model=task.model,
        args=args,
        train_dataset=task.rows,
        environment_factory=task.environment_factory,
        prompts=task.prompts,
        callbacks=[callback],
    )
    callback.trained = trainer
    start = time.perf_counter()
    trainer.train()
    logs = [entry["episode/success_rate"] for entry in trainer.state.log_history if "episode/success_rate" in entry]
    return {
        "optimizer_steps": trainer.state.global_step,
        "environment_steps": trainer.num_environment_steps,
        "generated_tokens": trainer.roles.num_generated_tokens,
        "fallen": callback.fallen,
        "levels": callback.levels,
        "last_success": statistics.mean(logs[-10:]),
        "rehearsal_ratio": args.rehearsal_ratio,
        "seconds": time.perf_counter() - start,
    }


def summary(cells: dict[str, dict]) -> dict[str, dict]:
    """Compare the arms of each task over the seeds that both have."""
    compared = {}
    for task in sorted({name.split("/")[0] for name in cells}):
        seeds = [seed for seed in range(100) if all(f"{task}/{arm}/{seed}" in cells for arm in ARMS)]
        if not seeds:
            continue
        steps = {arm: [cells[f"{task}/{arm}/{seed}"]["optimizer_steps"] for seed in seeds] for arm in ARMS}
        compared[task] = {
            "seeds": seeds,
            "steps": steps,
            "held_to_the_end": {
                arm: sum(cells[f"{task}/{arm}/{seed}"]["fallen"] is None for seed in seeds) for arm in ARMS
            },
            "ratio_of_medians": statistics.median(steps["self"]) / statistics.median(steps["none"]),
        }
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["service_desk_told", "rooms"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs", "forgetting"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cells: dict[str, dict] = {}
    if args.json is not None and args.json.exists():
        cells = json.loads(args.json.read_text())["cells"]
    for task in args.tasks:
        for seed in args.seeds:
            for arm in ARMS:
                name = f"{task}/{arm}/{seed}"
                if name not in cells:
                    cells[name] = measure(task, arm, seed, args.runs)
                    print(name, cells[name], flush=True)
                report = {**setting("torch", "transformers", "trl"), "summary": summary(cells), "cells": cells}
                write(report, args.json)
    print(json.dumps(summary(cells), indent=2))


if __name__ == "__main__":
    main()
