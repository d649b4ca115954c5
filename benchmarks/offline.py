# SPDX-License-Identifier: Apache-2.0

"""
Learning from logs alone: NLAC without an environment on episodes of the base policy, against supervised fine-tuning on
all of them and on the successful ones. All methods take the same number of gradient steps, with the same rehearsal.
Seconds include training and the evaluation after it.

python -m benchmarks.offline --json benchmarks/results/offline.json --page docs/source/offline.md

The measurements of each desk are kept under --runs, so that an interrupted benchmark continues where it stopped.
"""

import argparse
import random
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from accelerate import Accelerator
from datasets import Dataset
from transformers import PreTrainedModel

from benchmarks import reporting
from benchmarks.learning.figures.seeds import over_seeds
from benchmarks.learning.methods.settings import NLAC, acting_config
from benchmarks.learning.methods.sft import sft_trainer
from benchmarks.learning.playing import Player
from benchmarks.learning.tasks import LearningTask, make_task
from trl_nlac import NLACConfig, NLACTrainer
from trl_nlac.episodes.conversations import to_dataset
from trl_nlac.training.model import load_model


def collect(task: LearningTask, acting: NLACConfig, num_episodes: int) -> tuple[Dataset, dict]:
    """Return conversations of the base policy, and its metrics."""
    accelerator = Accelerator(cpu=True)
    player = Player.of_model(task, acting, load_model(task.model, acting).to(accelerator.device), accelerator)
    rows = [task.rows[i % len(task.rows)] for i in range(num_episodes)]
    episodes = player.play(random.Random(acting.seed).sample(rows, len(rows)))
    logs = to_dataset(episodes, player.roles.actions)
    return logs, player.evaluate(num_episodes=task.final_episodes)


def evaluate(task: LearningTask, acting: NLACConfig, model: PreTrainedModel, accelerator: Accelerator) -> dict:
    return Player.of_model(task, acting, model.eval(), accelerator).evaluate(num_episodes=task.final_episodes)


def train_nlac(task: LearningTask, acting: NLACConfig, logs: Dataset, max_steps: int) -> tuple[dict, float]:
    args = replace(acting, **NLAC, max_steps=max_steps, logging_steps=100)
    arguments = {**task.trainer_arguments, "environment_factory": None, "train_dataset": None, "replay_dataset": logs}
    trainer = NLACTrainer(model=task.model, args=args, **arguments)
    start = time.perf_counter()
    trainer.train()
    return evaluate(task, acting, trainer.model, trainer.accelerator), time.perf_counter() - start


def train_sft(task: LearningTask, acting: NLACConfig, logs: Dataset, max_steps: int) -> tuple[dict, float]:
    """Train with TRL's SFT trainer, with as many rehearsal samples for each action as NLAC has for a transition."""
    trainer = sft_trainer(task, acting, logs, max_steps, NLAC["rehearsal_ratio"])
    start = time.perf_counter()
    trainer.train()
    return evaluate(task, acting, trainer.model, trainer.accelerator), time.perf_counter() - start


def run_seed(name: str, seed: int, num_episodes: int, max_steps: int) -> dict:
    """Run all methods on the logs of one desk."""
    task = make_task(name, seed)
    with tempfile.TemporaryDirectory() as folder:
        acting = acting_config(task, folder, seed)
        logs, base = collect(task, acting, num_episodes)
        successes = logs.filter(lambda row: row["reward"] >= acting.success_threshold)
        cell = {
            "num_episodes": len(logs),
            "num_transitions": sum(m["role"] == "assistant" for messages in logs["messages"] for m in messages),
            "num_successes": len(successes),
            "base": {"success": base["episode/success_rate"]},
        }
        methods = {"nlac": (train_nlac, logs), "sft_all": (train_sft, logs), "sft_successes": (train_sft, successes)}
        for method, (train, data) in methods.items():
            if len(data):
                metrics, seconds = train(task, acting, data, max_steps)
                cell[method] = {"success": metrics["episode/success_rate"], "seconds": round(seconds, 1)}
            else:
                cell[method] = {
                    "success": cell["base"]["success"],
                    "seconds": 0.0,
                    "remark": "no successes to train on",
                }
            print(f"{name} {seed}, {method}: {cell[method]}", flush=True)
    return cell


METHODS = {"base": "base model", "nlac": "NLAC", "sft_successes": "SFT on successes", "sft_all": "SFT on all"}


def as_markdown(report: dict) -> str:
    """Format the success of each method on logs of each size as a table."""
    rows = []
    for logs in report["logs"]:
        successes = ", ".join(str(cell["num_successes"]) for cell in logs["seeds"].values())
        results = [reporting.interval(logs["success"][method]) for method in METHODS]
        rows.append([str(logs["num_episodes"]), successes, *results])
    return reporting.table(["logged episodes", "successes in them", *METHODS.values()], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="service_desk_told")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--num_episodes", nargs="+", type=int, default=[256], help="logged episodes")
    parser.add_argument("--max_steps", type=int, default=200, help="gradient steps")
    parser.add_argument("--runs", type=Path, default=Path("runs/offline"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="Markdown file whose results are replaced by the table")
    args = parser.parse_args()
    logs = []
    for num_episodes in args.num_episodes:
        cells = {}
        for seed in args.seeds:
            path = args.runs / f"{args.task}_{num_episodes}_{args.max_steps}_{seed}.json"
            cells[str(seed)] = reporting.kept(path, partial(run_seed, args.task, seed, num_episodes, args.max_steps))
        success = {
            method: over_seeds({seed: cell[method]["success"] for seed, cell in cells.items()}) for method in METHODS
        }
        logs.append({"num_episodes": num_episodes, "success": success, "seeds": cells})
    setting = reporting.setting("torch", "transformers", "trl", "datasets")
    report = {"task": args.task, "max_steps": args.max_steps, "logs": logs, **setting}
    reporting.publish(report, as_markdown(report), "offline.py", args.json, args.page)


if __name__ == "__main__":
    main()
