# SPDX-License-Identifier: Apache-2.0

"""
How long a model keeps its roles, without rehearsal and with its own answers (`rehearsal_source="self"`): optimizer
steps until the first role falls below 0.7 of its start, for the tiny model, which forgets fast. No dataset helps it.

Before training the model answers in every role about some transitions. Every few steps it is asked the very same
questions again: how many answers can be read, whether its backups still repeat the next observation, and whether its
refinements still keep or change an action as the critique says. The metrics of a run cannot tell this, because they
ask other questions as policy and critic learn.

    python -m benchmarks.forgetting --json benchmarks/results/forgetting.json --page docs/source/faq.md

The file keeps what it has; a run that was stopped goes on where it was.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from transformers import TrainerCallback

from benchmarks import reporting
from benchmarks.learning.methods.settings import acting_config, default_settings
from benchmarks.learning.run import budget_of
from benchmarks.learning.tasks import make_task
from trl_nlac import NLACTrainer
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.evaluation.health import backup_fidelity
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.refinement import refine_actions
from trl_nlac.prompts import parse_critique


ARMS = {"none": {"rehearsal_ratio": 0.0}, "self": {"rehearsal_source": "self"}}
FALL, INTERVAL, EPISODES = 0.7, 8, 24  # share of the start; optimizer steps between questions; episodes asked about
# Environment steps after which a run that holds its roles is ended, in budgets of the learning benchmark: over ten
# times as many as models without rehearsal hold them.
BUDGETS = {"service_desk_told": 2, "rooms": 3}


class FallCallback(TrainerCallback):
    """
    Ask the same questions again and again. Stop training once a role has fallen, or the environment steps are spent.

    Args:
        budget (`int`):
            Number of environment steps.
        rows (`list[dict]`):
            Tasks of the episodes to ask about.
    """

    def __init__(self, budget: int, rows: list[dict]):
        self.budget, self.rows = budget, rows
        self.curve: list[dict[str, float]] = []
        self.fallen: str | None = None
        self.trained: NLACTrainer | None = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Ask the model in training, and leave its metrics and random state as they were."""
        trainer = self.trained
        with trainer.roles.tally.unrecorded(), torch.random.fork_rng(devices=[]), trainer._generating():
            torch.manual_seed(0)
            yield

    def on_train_begin(self, args, state, control, **kwargs):
        roles = self.trained.roles
        with self.aside():
            episodes = play_episodes(self.trained.environments, self.rows, roles)
            self.transitions = [transition for episode in episodes for transition in episode.transitions]
            with roles.collected() as answers:
                self.targets = bellman_targets(roles, self.transitions, self.trained.args.bootstrap)
                refinements = refine_actions(roles, self.transitions)
            self.refinements = [refinement for refinement in refinements if refinement is not None]
            self.judged = [answer.prompt for answer in answers["critique"]]
        self.ask(0)

    def ask(self, step: int) -> None:
        """Ask again."""
        roles = self.trained.roles
        with self.aside():
            acted = roles.ask("policy", [t.state for t in self.transitions], max_format_retries=0)
            judged = roles.ask("critique", self.judged, parse_critique, max_format_retries=0)
            told = roles.ask("backup", [t.prompt for t in self.targets], parse_critique, max_format_retries=0)
            prompts = [refinement.refined_action.prompt for refinement in self.refinements]
            refined = roles.ask("refine", prompts, max_format_retries=0)
        answers = {"policy": acted, "critique": judged, "backup": told, "refine": refined}
        values = {f"{role}/format": [answer.parsed is not None for answer in of] for role, of in answers.items()}
        values["backup/fidelity"] = [
            backup_fidelity(transition, answer.parsed) if answer.parsed is not None else 0.0
            for transition, answer in zip(self.transitions, told, strict=True)
        ]
        values["refine/compliance"] = [
            answer.parsed is not None and replace(refinement, refined_action=answer).complies
            for refinement, answer in zip(self.refinements, refined, strict=True)
        ]
        self.curve.append({"step": step, **{name: statistics.mean(map(float, of)) for name, of in values.items()}})

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % INTERVAL == 0:
            self.ask(state.global_step)
            first, last = self.curve[0], self.curve[-1]
            self.fallen = next((name for name in first if name != "step" and last[name] < FALL * first[name]), None)
        if self.fallen is not None or self.trained.num_environment_steps >= self.budget:
            control.should_training_stop = True


def measure(task_name: str, arm: str, seed: int, folder: Path) -> dict:
    """Train until a role falls."""
    task = make_task(task_name, seed)
    acting = acting_config(task, str(folder / task_name / arm / str(seed)), seed)
    args = replace(acting, max_steps=10**6, **{**default_settings(task, "nlac"), **ARMS[arm]})
    args = replace(args, logging_steps=INTERVAL)
    callback = FallCallback(BUDGETS[task_name] * budget_of(task_name, "nlac"), list(task.rows)[:EPISODES])
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
        "generated_tokens": trainer.roles.tally.num_generated_tokens,
        "fallen": callback.fallen,
        "curve": callback.curve,
        "last_success": statistics.mean(logs[-5:]),
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
            "held": {arm: [cells[f"{task}/{arm}/{seed}"]["fallen"] is None for seed in seeds] for arm in ARMS},
            "ratio_of_medians": statistics.median(steps["self"]) / statistics.median(steps["none"]),
        }
    return compared


def table(compared: dict[str, dict]) -> str:
    """Write the comparison as a table: all steps, "held" where no role had fallen when the run was ended."""
    lines = [
        "Optimizer steps until the first role of the tiny model is below 0.7 of its start, one number for each seed;",
        "with a plus no role had fallen when the run was ended:",
    ]
    rows = []
    for task, found in compared.items():
        steps = [
            ", ".join(f"{number}{'+' if held else ''}" for number, held in zip(of, found["held"][arm], strict=True))
            for arm, of in found["steps"].items()
        ]
        of_self = zip(found["steps"]["self"], found["held"]["self"], strict=True)
        median = statistics.median(found["steps"]["self"])
        least = "at least " if any(held and number <= median for number, held in of_self) else ""
        rows.append([task.replace("_", " "), *steps, f"{least}{found['ratio_of_medians']:.1f}"])
    names = ["task", "without rehearsal", "with its own answers", "ratio of the medians"]
    return "\n".join([*lines, "", reporting.table(names, rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs", "forgetting"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="Markdown file in which to replace the results.")
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
                versions = reporting.setting("torch", "transformers", "trl")
                report = {**versions, "summary": summary(cells), "cells": cells}
                reporting.write(report, args.json)
    print(json.dumps(summary(cells), indent=2))
    if args.page is not None:
        reporting.insert(table(summary(cells)), args.page, "forgetting.py")


if __name__ == "__main__":
    main()
