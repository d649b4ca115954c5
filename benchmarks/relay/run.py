# SPDX-License-Identifier: Apache-2.0

"""
Where bootstrapping must win: the relay house, from logs in which every piece of every way out is there, and no way.

python -m benchmarks.relay.run

All methods take the same number of gradient steps on the same logs, and never play. With `--plays` NLAC begins with
these logs in its replay buffer, stale failures, and plays from the highest floor. Each cell (house, method) is a
process and a file below --cells, so that what was stopped goes on; published cells are not run again. `python -m
benchmarks.cells relay <set> <folder>` adds a folder to them, whose set is its name.
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from transformers import Trainer, TrainerCallback

from benchmarks import reporting
from benchmarks.cells import read_cells
from benchmarks.learning.figures.curves import COSTS
from benchmarks.learning.figures.tables import TOKENS, Tables
from benchmarks.learning.methods import nlac
from benchmarks.learning.methods.scalar import ScalarActorCriticTrainer
from benchmarks.learning.methods.settings import HINDSIGHT, NLAC, acting_config, merge_settings
from benchmarks.learning.methods.sft import sft_trainer
from benchmarks.learning.playing import Player, TrainedTokens
from benchmarks.learning.tasks import LearningTask, relay
from trl_nlac import NLACTrainer
from trl_nlac.environments.embedded.rooms import DOORS, parse_door
from trl_nlac.episodes.logs import episodes_from_logs
from trl_nlac.episodes.recorder import replay_actions
from trl_nlac.method.backup import bellman_targets
from trl_nlac.method.critic import critiques
from trl_nlac.records.console import ConsoleCallback
from trl_nlac.types import Answer, Transition


ROOT = Path(__file__).parents[2]
# The defaults; nothing was tuned on relay houses.
SETTINGS = merge_settings(NLAC, {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1})
REHEARSAL_RATIO = 1.0  # of the baselines
ARMS = {
    "explicit": {"bootstrap": "explicit"},
    "forgetful": {"bootstrap": "explicit", "keep_history": False},
    "forgetful_monte_carlo": {"bootstrap": "monte_carlo", "keep_history": False},
    "distilled": {"bootstrap": "explicit", "policy_loss_type": "distill"},
    "implicit": {"bootstrap": "implicit"},
    "monte_carlo": {"bootstrap": "monte_carlo"},
    "hindsight": HINDSIGHT,
}
# SFT on successes; an actor-critic with bootstrapped numbers.
BASELINES = {"sft": {}, "scalar": {}, "scalar_forgetful": {"keep_history": False}}
PLAYED = ("explicit", "monte_carlo", "hindsight")
NUM_EVALUATIONS = 8
QUICK = ["--methods", "forgetful", "forgetful_monte_carlo", "--seeds", "0", "--floors", "2", "--max_steps", "240"]
QUICK += ["--cells", "runs/relay_quick"]


def settings_of(method: str) -> dict[str, Any]:
    """Return the settings of a method."""
    return merge_settings(SETTINGS, {**ARMS, **BASELINES}[method])


def success(player: Player, num_episodes: int) -> dict[str, dict[str, float]]:
    """Measure the success on every floor, sampled and greedy."""
    sampling = player.roles.samplings["evaluation"]
    settings = {"sampled": (1.0, num_episodes), "greedy": (0.0, 1)}
    return {
        name: {
            floor: player.evaluate(floor, number, replace(sampling, temperature=temperature))["episode/success_rate"]
            for floor in player.task.instances
            if floor.startswith("floor_")
        }
        for name, (temperature, number) in settings.items()
    }


def yes_rate(answers: list[Answer]) -> float:
    """Return the share of critiques or targets that call their action the best."""
    return sum(answer.parsed is not None and answer.parsed.optimal for answer in answers) / len(answers)


def examine(trainer: NLACTrainer, task: LearningTask, bootstrap: str) -> dict[str, dict[str, dict[str, float]]]:
    """
    Ask the trained critic about the right and the wrong doors of every floor: how often its greedy critique says that
    the door is the best, where the floor is the start and where it was reached from the floor above ("reached"), and
    how often the target does that it writes about the logged first doors. In no log is a right door taken where it was
    reached.
    """
    roles, environment = trainer.roles, task.instances["floor_1"].environment_factory()
    house = environment.world
    logged = [Transition(e, 0) for e in episodes_from_logs(task.logs, roles.actions, roles.prompts)]
    greedy = replace(roles.samplings["critic"], temperature=0.0)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for floor in range(1, house.horizon + 1):
        played = [
            Transition(replay_actions(environment, row, [f"take {door}"], roles.actions, roles.prompts), 0)
            for row in house.tasks(floor)
            for door in DOORS
        ]
        reached = [
            Transition(replay_actions(environment, row, [*down, f"take {door}"], roles.actions, roles.prompts), 1)
            for row in (house.tasks(floor + 1) if floor < house.horizon else [])
            for down in [[f"take {house.right[row['start']]}"]]
            for door in DOORS
        ]
        of_floor = [t for t in logged if t.episode.task["steps"] == floor]
        found[f"floor_{floor}"] = {}
        for kind in ("right", "wrong"):

            def chosen(transition: Transition, kind: str = kind) -> bool:
                room, *_ = transition.observation.split()
                return (parse_door(transition.turn.action) == house.right[room]) == (kind == "right")

            asked, tried, followed = ([t for t in of if chosen(t)] for of in (played, of_floor, reached))
            with roles.tally.unrecorded(), roles.tally.uncounted(), torch.random.fork_rng(), trainer._generating():
                torch.manual_seed(0)
                answers = {
                    "critic": critiques(roles, [t.state_action for t in asked], greedy),
                    "reached": critiques(roles, [t.state_action for t in followed], greedy),
                    "targets": bellman_targets(roles, tried, bootstrap),
                }
            found[f"floor_{floor}"][kind] = {name: yes_rate(of) for name, of in answers.items() if of}
    return found


class FloorCurve(TrainerCallback):
    """Measures the success on every floor while a policy is trained, every `interval` gradient steps."""

    def __init__(self, player: Player, interval: int):
        self.player, self.interval = player, interval
        self.trained_tokens = TrainedTokens()
        self.points: list[dict[str, Any]] = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.trained_tokens.watch(model)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.interval == 0:
            self.points.append({"gradient_steps": state.global_step, **success(self.player, num_episodes=16)})
            print(self.points[-1], flush=True)


def make_trainer(
    task: LearningTask, method: str, seed: int, output_dir: Path, max_steps: int
) -> tuple[Trainer, Player]:
    """Make the trainer of a method that learns from the logs of `task` alone, and its player."""
    acting = acting_config(task, str(output_dir), seed, num_eval_critiques=0)
    offline = replace(task, environment_factory=None, rows=None)
    if method == "sft":
        successes = task.logs.filter(lambda row: row["reward"] == 1)
        trainer = sft_trainer(task, acting, successes, max_steps, REHEARSAL_RATIO)
        return trainer, Player.of_model(task, acting, trainer.model, Accelerator(cpu=True))
    decay = {"num_decay_steps": max_steps // 5, "min_lr_ratio": 0.0}
    settings = settings_of(method)
    settings |= {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": decay}
    trainer_class = nlac.TRAINERS[settings.pop("trainer", "nlac")]
    args = replace(acting, max_steps=max_steps, logging_steps=100, **settings)
    if method in BASELINES:
        scalar = dict(num_candidates=4, entropy_temperature=0.1, initial_value=0.02, rehearsal_ratio=REHEARSAL_RATIO)
        trainer = ScalarActorCriticTrainer(offline, args, **scalar)
    else:
        trainer = trainer_class(model=task.model, args=args, **offline.trainer_arguments)
    return trainer, Player(task, args, trainer.model, trainer.roles)


def learn_from_logs(method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one method on the logs of one house."""
    task = relay(seed, args.floors)
    trainer, player = make_trainer(task, method, seed, args.runs / f"{method}_{seed}", args.max_steps)
    curve = FloorCurve(player, max(1, args.max_steps // NUM_EVALUATIONS))
    trainer.remove_callback(ConsoleCallback)
    trainer.add_callback(curve)
    trainer.train()
    trainer.model.eval()
    cell = {
        "success": success(player, task.final_episodes),
        "curve": curve.points,
        "costs": {
            "gradient_steps": trainer.state.global_step,
            "generated_tokens": player.roles.tally.num_generated_tokens,
            "prefilled_tokens": player.roles.tally.num_prefilled_tokens,
            "trained_tokens": curve.trained_tokens.number,
            "seconds": trainer.state.log_history[-1]["train_runtime"],
        },
    }
    if method in ARMS:
        cell["critic"] = examine(trainer, task, trainer.args.bootstrap)
    return cell


def play_on(method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one method that plays from the highest floor, with the logs in its replay buffer."""
    task = relay(seed, args.floors)
    task = replace(task, instances={**task.instances, "held_out": task.instances[f"floor_{args.floors}"]})
    acting = acting_config(task, str(args.runs / f"play_{method}_{seed}"), seed, num_eval_critiques=0)
    interval = max(1, args.budget // NUM_EVALUATIONS)
    curve = nlac.train(task, acting, args.budget, interval, **merge_settings(SETTINGS, ARMS[method]))
    return {
        "success": success(curve.player, task.final_episodes),
        "curve": curve.points,
        "costs": {name: curve.points[-1][name] for name in (*COSTS, *TOKENS)},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=[*ARMS, *BASELINES], default=[*ARMS, *BASELINES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--floors", type=int, default=3)
    parser.add_argument("--max_steps", type=int, default=1000, help="gradient steps on the logs")
    parser.add_argument("--plays", action="store_true", help="play, beginning with the logs; not for the baselines")
    parser.add_argument("--budget", type=int, default=600, help="environment steps, with --plays")
    parser.add_argument("--runs", type=Path, default=Path("runs/relay"))
    parser.add_argument("--cells", type=Path, default=Path("runs/relay_cells"))
    parser.add_argument("--quick", action="store_true", help="a house of two floors, two methods, few steps; minutes")
    parser.add_argument("--in_process", action="store_true", help=argparse.SUPPRESS)
    words = sys.argv[1:]
    args = parser.parse_args(words)
    if args.quick and not args.in_process:
        words += QUICK
        args = parser.parse_args(words)
    methods = [method for method in args.methods if not args.plays or method in PLAYED]
    cells = [(method, seed) for seed in args.seeds for method in methods]
    steps = args.budget if args.plays else args.max_steps
    folder = args.cells / f"{'play' if args.plays else 'logs'}_{steps}_{args.floors}_floors"
    if args.in_process:
        [(method, seed)] = cells
        setting = reporting.setting("torch", "transformers", "trl", "accelerate")  # before the checkout may change
        measured = (play_on if args.plays else learn_from_logs)(method, seed, args)
        spent = f"--plays --budget {steps}" if args.plays else f"--max_steps {steps}"
        command = f"python -m benchmarks.relay.run --methods {method} --seeds {seed} --floors {args.floors} {spent}"
        cell = {"method": method, "seed": seed, "plays": args.plays, "steps": steps, "floors": args.floors}
        cell |= {"command": command, **measured, "settings": settings_of(method)}
        reporting.write({**cell, **setting}, folder / method / f"{seed}.json")
        return
    published = {(cell["method"], cell["seed"]) for cell in read_cells("relay", folder.name)}
    for method, seed in cells:
        if (method, seed) not in published and not (folder / method / f"{seed}.json").exists():
            # With another number of threads sums differ in their last bits, and after some hundred updates so do runs.
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "benchmarks.relay.run", *words, "--in_process"]
            command += ["--methods", method, "--seeds", str(seed)]
            log = args.runs / f"{method}_{seed}.txt"
            if not reporting.run_logged(command, log, env=env, cwd=ROOT):
                sys.exit(f"{method} {seed} failed, see {log}.")
            print(f"{method} {seed}: done", flush=True)
    paths = sorted(folder.rglob("*.json"))
    if paths:
        print(Tables([], relay=[{"set": folder.name, **json.loads(path.read_text())} for path in paths]).relay())


if __name__ == "__main__":
    main()
