# SPDX-License-Identifier: Apache-2.0

"""
What running out of turns means for learning: `turn_limit="truncate"` against `"terminate"`, in houses without a clock.
Rooms can be walked in circles for ever, no observation shows how many doors are left, and only `max_turns` ends an
episode that finds neither a treasure nor a trap.

python -m benchmarks.turn_limit --json benchmarks/results/turn_limit.json
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks import reporting
from benchmarks.learning.methods.settings import acting_config, default_settings
from benchmarks.learning.tasks import make_task
from trl_nlac import NLACTrainer
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded.rooms import RoomsEnvironment, RoomsWorld
from trl_nlac.types import Episode


class Labyrinth(RoomsEnvironment):
    """A house that does not count the doors."""

    def step(self, action: str) -> StepResult:
        self._steps_left = self.world.horizon + 1
        return super().step(action)


def outcomes(episodes: list[Episode]) -> dict[str, float]:
    """Return the shares of episodes that ended in each way."""
    ends = [episode.turns[-1].next_observation.split()[-1] for episode in episodes]
    shares = {name: ends.count(name) / len(ends) for name in ("win", "lose")}
    return {**shares, "out_of_turns": 1 - sum(shares.values())}


def measure(seed: int, turn_limit: str, max_steps: int, num_episodes: int) -> dict:
    """Train in a house; return how the first and the last episodes of training ended."""
    task, world = make_task("rooms", seed), RoomsWorld.from_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        args = replace(
            acting_config(task, folder, seed, turn_limit=turn_limit),
            **default_settings(task, "nlac"),
            max_steps=max_steps,
            logging_steps=100,
        )
        arguments = {**task.trainer_arguments, "environment_factory": lambda: Labyrinth(world)}
        trainer = NLACTrainer(model=task.model, args=args, **arguments)
        trainer.train()
        episodes = trainer.replay.episodes
    before, after = outcomes(episodes[:num_episodes]), outcomes(episodes[-num_episodes:])
    return {"environment_steps": trainer.num_environment_steps, "before": before, "after": after}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--max_steps", type=int, default=300, help="gradient steps")
    parser.add_argument(
        "--num_episodes", type=int, default=64, help="episodes at the start and at the end of training"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cells = {}
    for turn_limit in ("truncate", "terminate"):
        for seed in args.seeds:
            cell = measure(seed, turn_limit, args.max_steps, args.num_episodes)
            cells.setdefault(turn_limit, {})[str(seed)] = cell
            print(turn_limit, seed, cell, flush=True)
    setting = reporting.setting("torch", "transformers", "trl")
    reporting.write(
        {**{name: vars(args)[name] for name in ("max_steps", "num_episodes")}, **cells, **setting}, args.json
    )


if __name__ == "__main__":
    main()
