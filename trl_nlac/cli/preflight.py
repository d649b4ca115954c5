# SPDX-License-Identifier: Apache-2.0
"""`trl-nlac preflight`: try one iteration of a run before it is started."""

import random
import shutil
import time
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import Trainer, TrainerCallback

from ..agent.better_actions import act_better
from ..episodes.rollout import Act
from ..evaluation.evaluation import evaluate_policy, joint_metrics
from ..evaluation.readiness import NO_GO, Check, check_iteration, check_refinement, check_success
from ..nlac_config import NLACConfig
from ..records.console import ConsoleCallback
from ..written_files import write_json
from .errors import CommandError
from .launch import OPTION, launch
from .parsers import preflight_parser
from .train import make_trainer
from .train_options import TrainParser


def run(words: list[str]) -> None:
    args, of_run = preflight_parser().parse_known_args(words)
    if args.num_episodes < 0:
        raise CommandError(f"--num_episodes must be at least 0, got {args.num_episodes}.")
    if args.expected_success is not None and not (args.num_episodes and 0 <= args.expected_success <= 1):
        raise CommandError(
            f"--expected_success {args.expected_success:g} is a share from 0 to 1, and needs --num_episodes above 0, "
            f"got {args.num_episodes}."
        )
    if any(word.partition("=")[0] == OPTION for word in of_run):
        own = [word for name, value in vars(args).items() if value is not None for word in (f"--{name}", str(value))]
        launch(of_run, ["preflight", *own])
    parser = TrainParser()
    *_, options = parser.read(of_run)
    folder = f"{options.output_dir.rstrip('/')}.preflight"
    if Path(folder).is_symlink():
        raise CommandError(f"{folder!r} is a link, and this command makes and deletes a folder so named. Remove it.")
    trainer = make_trainer(*parser.read([*of_run, *_trial(folder, options)]), parser.unsupported)
    trial = Trial(trainer, args.num_episodes)
    trainer.remove_callback(ConsoleCallback)
    trainer.add_callback(trial)
    try:
        trainer.train()
    finally:
        if trainer.is_world_process_zero():
            shutil.rmtree(folder, ignore_errors=True)
    if trainer.is_world_process_zero():
        conclude(trial, args.expected_success, args.json, max(options.max_steps, 0) / options.updates_per_iteration)
    trainer.accelerator.end_training()


def _trial(folder: str, of_run: NLACConfig) -> list[str]:
    """Return the options that make one iteration of a run, which leaves nothing behind."""
    changes = {"output_dir": folder, "overwrite_output_dir": True, "max_steps": of_run.updates_per_iteration}
    changes |= {"logging_strategy": "steps", "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    changes |= {"save_strategy": "no", "eval_strategy": "no", "eval_on_start": False, "load_best_model_at_end": False}
    changes |= {"push_to_hub": False, "log_completions": False, "audit_samples": 0}
    if of_run.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy"):  # which follow evaluations
        changes["lr_scheduler_type"] = "constant"
    return [word for name, value in changes.items() for word in (f"--{name}", str(value))]


class Trial(TrainerCallback):
    """Plays before the first step of a trainer, without and with refinement, and takes the time of its steps."""

    def __init__(self, trainer: Trainer, num_episodes: int):
        self.trainer = trainer
        self.num_episodes = num_episodes if trainer.environments else 0
        self.success: dict[str, float] = {}
        self.start = self.seconds = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        if self.num_episodes:
            roles = self.trainer.roles
            with roles.tally.uncounted(), roles.generator.session(self.trainer.model_wrapped):
                self._say(f"Playing {self.num_episodes} episodes ...")
                self.success["plain"] = self._play(None)
                self._say("... and again, with each action refined ...")
                evaluation = roles.samplings["evaluation"]
                self.success["refined"] = self._play(partial(act_better, roles, refine=1, sampling=evaluation))
            roles.take_metrics()
        self._say("Running one iteration ...")
        self.start = time.perf_counter()

    def on_train_end(self, args, state, control, **kwargs):
        self.seconds = time.perf_counter() - self.start

    def _say(self, text: str) -> None:
        if self.trainer.is_world_process_zero():
            print(text, flush=True)

    def _play(self, act: Act | None) -> float:
        """Play the tasks as often as it takes; return the success rate. A failure in every episode is an error."""
        trainer = self.trainer
        dataset, options = trainer.eval_dataset or trainer.train_dataset, trainer.args
        order = random.Random(options.seed).sample(range(len(dataset)), len(dataset))
        places = range(options.process_index, self.num_episodes, options.world_size)
        tasks = {place: dataset[order[place % len(order)]] for place in places}
        evaluation = evaluate_policy(
            trainer.environments, tasks, trainer.roles, num_critiques=0, act=act, rewards=trainer.rewards
        )
        trainer.rendezvous.wait()
        metrics = joint_metrics(evaluation)
        if "episode/success_rate" not in metrics:
            raise CommandError(
                f"The environment failed in all of {self.num_episodes} episodes. Mend it, or raise "
                "`environment_timeout`. The last failure on this process:\n"
                f"{trainer.environments.last_failure or 'none'}"
            )
        return metrics["episode/success_rate"]

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the iteration."""
        return {k: v for log in self.trainer.state.log_history if "loss" in log for k, v in log.items()}


def conclude(trial: Trial, expected: float | None, path: str | None, num_iterations: float) -> None:
    """Print the checks, and write them down. A no-go is an error."""
    metrics, success = trial.metrics, trial.success
    checks = check_iteration(metrics)
    if success:
        checks.append(check_refinement(success["plain"], success["refined"], trial.num_episodes))
    if expected is not None:
        checks.append(check_success(success["plain"], trial.num_episodes, expected))
    costs = {"seconds_per_iteration": trial.seconds}
    if num_iterations:
        costs["hours"] = trial.seconds * num_iterations / 3600
    if torch.cuda.is_available():
        costs["peak_memory"] = float(torch.cuda.max_memory_allocated())
    show(checks, costs)
    if path:
        write_json(
            path, {"checks": [asdict(check) for check in checks], "success": success, **costs, "metrics": metrics}
        )
    failed = [check for check in checks if check.verdict == NO_GO]
    if failed:
        raise CommandError(f"{len(failed)} of {len(checks)} checks are a no-go, see above.")


def show(checks: list[Check], costs: dict[str, float]) -> None:
    """Print the checks and the costs of the first iteration."""
    table = Table("check", "measured", "needed", "verdict")
    for check in checks:
        table.add_row(check.name, f"{check.value:.2f}", check.needed, check.verdict)
    console = Console()
    console.print(table)
    for check in checks:
        if check.verdict == NO_GO:
            console.print(f"{check.name}: {check.advice}", highlight=False, markup=False, soft_wrap=True)
    line = f"The first iteration took {costs['seconds_per_iteration']:,.0f} s"
    if "hours" in costs:
        line += f"; as long each, the run takes {timedelta(seconds=round(3600 * costs['hours']))}"
    if "peak_memory" in costs:
        line += f"; at most {costs['peak_memory'] / 1e9:,.1f} GB of this GPU's memory were in use"
    console.print(f"{line}.", highlight=False, soft_wrap=True)
