# SPDX-License-Identifier: Apache-2.0

"""Environments in other processes."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from datasets import Dataset
from helpers.testing_utils import make_trained, make_trainer

from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.types import Episode


def wait_until(is_done: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for what other threads or processes do, on a machine at its limits."""
    end = time.monotonic() + seconds
    while not is_done() and time.monotonic() < end:
        time.sleep(0.01)
    assert is_done()


def make_faulty(folder):
    """Make a factory of environments with a `fault`, `at` which step."""

    class Odd(Exception):
        """Cannot be made from its own arguments."""

        def __init__(self, message, number):
            super().__init__(f"{message} {number}")

    class Faulty(TextEnvironment):
        takes_seed = True

        def reset(self, seed, fault=None, at=0):
            self.seed, self.fault, self.at, self.turn = seed, fault, at, 0
            return self._fault(f"win {seed % 10}")

        async def step(self, action):
            self.turn += 1
            return StepResult(self._fault(f"win {self.turn}"), float(self.turn == 3), terminated=self.turn == 3)

        def final_reward(self):
            return self.seed % 7

        def close(self):
            (folder / f"{os.getpid()}").touch()

        def _fault(self, observation):
            if self.turn == self.at:
                if self.fault == "exception":
                    raise RuntimeError("broken")
                if self.fault == "cannot travel":
                    raise Odd("broken", 1)
                if self.fault == "exit":
                    sys.exit(1)
                if self.fault == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.fault == "hang":
                    while True:
                        pass
                while self.fault == "sleep":
                    time.sleep(0.1)
                if self.fault == "malformed":
                    return b"bytes"
            return observation

    return lambda: Faulty()


def check_same_as_in_threads(folder: Path, play: Callable[[str, Callable, list[dict]], list[Episode]], workers: str):
    """Check that episodes are those that are played in threads: seeds, texts, rewards, and what failed where."""
    faults = [None, "exception", None, "malformed", "exit", None, "exception"]
    tasks = [{"fault": fault, "at": i % 3} for i, fault in enumerate(faults)]
    in_threads, in_others = (
        [
            (e.token_ids.tolist(), e.turns, e.score, e.terminated, e.failure)
            for e in play(kind, make_faulty(folder), tasks)
        ]
        for kind in ("thread", workers)
    )
    assert in_others == in_threads
    assert [failure is None for *_, failure in in_others] == [fault is None for fault in faults]
    assert len({score for _, _, score, _, _ in in_others}) > 2
    closed = {int(path.name) for path in folder.iterdir()}
    assert os.getpid() in closed and len(closed) > 2  # each closed itself, in its own process


def check_training(folder: Path, workers: str) -> None:
    """Train with `environment_workers=workers`, where reward functions cannot read `environments`."""

    class Game:  # within a function it travels by value
        def reset(self, start):
            return f"{start}"

        def step(self, action):
            return StepResult("won", 1.0, terminated=True)

    def judge(completions, environments, **kwargs):
        return [0.0] * len(completions)

    options = {"environment_workers": workers, "max_steps": 1}
    arguments = {"train_dataset": Dataset.from_dict({"start": [1] * 4}), "environment_factory": lambda: Game()}
    trainer = make_trained(folder, options, **arguments)
    assert trainer.num_environment_steps == 4
    with pytest.raises(ValueError, match=f"`judge` reads `environments`.*environment_workers='{workers}'"):
        make_trainer(folder, options, **arguments, reward_funcs=judge)
