# SPDX-License-Identifier: Apache-2.0

"""Plays the tasks of every iteration, stores the episodes, and stops where environments fail."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from accelerate.utils import gather_object

from ..types import Episode, TrainingStopped
from .failures import MAX_LEFT_BEHIND, FailureMonitor, check_played, nothing_played, too_many_hang
from .rendezvous import Rendezvous, raise_on_all
from .rounds import Rollouts


@dataclass(eq=False)
class Player:
    """
    Play tasks on every process, or take the episodes that were played beside training. All processes call each method
    together. What ends playing on one process is raised once all have met. `other_tasks` draws tasks for what is
    played before training can start, and `timed` measures the seconds of a phase.
    """

    rollouts: Rollouts
    failures: FailureMonitor
    rendezvous: Rendezvous
    store: Callable[[list[Episode]], Any]
    other_tasks: Callable[[int], list[dict[str, Any]]]
    generating: Callable[[], AbstractContextManager]
    timed: Callable[[str], AbstractContextManager]

    def wait(self, step: int, for_all: bool) -> None:
        """Wait for the episodes beside training that would be too old for the next iteration, or for all."""
        with self.timed("rollout"):
            if self.rollouts.are_beside and any(gather_object([self.rollouts.are_held])):
                self.play_on()  # for example after a callback has generated with other weights
            self.rollouts.wait(step, for_all)
            self.rendezvous.wait()

    def play_on(self) -> None:
        """Let episodes be played beside training with the policy's weights."""
        if self.rollouts.are_beside:
            with self.generating():
                self.rollouts.play_on()

    def play(self, tasks: list[dict[str, Any]], step: int, has_data: bool, is_last: bool) -> None:
        """
        Play tasks, then others until there is something to train on on every process, and store the episodes. `step`
        is the number of optimizer steps before. A process that has data can train on what it has already. Raise
        [`TrainingStopped`] if too many environments fail or hang. Raise a `RuntimeError` if nothing can be played.
        """
        episodes: list[Episode] = []
        num_empty = 0
        try:
            with self.timed("rollout"):
                while True:
                    played = self.rollouts.play(tasks, step, not has_data, is_last)
                    episodes += played
                    self.rendezvous.wait()
                    raise_on_all(self.rollouts.lost)
                    self._check_failures(played)
                    has_data = has_data or any(episode.num_turns for episode in played)
                    num_empty = 0 if has_data else num_empty + 1
                    if all(gather_object([has_data])):
                        break
                    check_played(gather_object([(num_empty, nothing_played(played) if num_empty else "")]))
                    tasks = self.other_tasks(len(tasks))
        except TrainingStopped:
            self.store(episodes)  # for the checkpoint
            raise
        self.store(episodes)

    def settle(self, step: int) -> None:
        """Store what is played beside training, for a checkpoint; raise on all processes if some are lost."""
        if self.rollouts.are_beside:
            self.wait(step, for_all=True)
            raise_on_all(self.rollouts.lost)

    def finish(self, step: int) -> None:
        """Store all that is played beside training; then raise on all processes if some are lost."""
        if self.rollouts.are_beside and any(gather_object([self.rollouts.are_under_way])):
            self.wait(step, for_all=True)
            episodes = self.rollouts.take()
            self._count_failures(episodes)
            self.store(episodes)
            raise_on_all(self.rollouts.lost)

    def _count_failures(self, episodes: list[Episode]) -> None:
        self.failures.update(gather_object([episode.failure is not None for episode in episodes]))

    def _check_failures(self, episodes: list[Episode]) -> None:
        """Stop where too many environments fail or hang."""
        self._count_failures(episodes)
        pool = self.rollouts.pool
        if self.failures.is_exceeded:
            raise TrainingStopped(self.failures.report(pool.last_failure))
        num_hanging = max(gather_object([pool.num_left_behind]))
        if num_hanging > MAX_LEFT_BEHIND:
            raise TrainingStopped(too_many_hang(num_hanging))
