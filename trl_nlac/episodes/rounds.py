# SPDX-License-Identifier: Apache-2.0

"""Rollouts of the iterations: before training, or in a thread while the model trains."""

import logging
import random
import threading
from collections import Counter, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..method.roles import Roles
from ..terminal import printable
from ..types import Episode
from .pool import EnvironmentPool
from .rewards import EpisodeRewards
from .rollout import play_episodes


logger = logging.getLogger(__name__)

STOPPING_SECONDS = 10.0  # how long to wait for the thread where playing is given up


@dataclass
class _Round:
    """The tasks of an iteration, which are played or will be."""

    tasks: list[dict[str, Any]]
    seed: int
    step: int  # number of optimizer steps before
    episodes: Future[list[Episode]] = field(default_factory=Future)


@dataclass(eq=False)
class Rollouts:
    """Play the tasks of each iteration, and wait for their episodes."""

    are_beside = False  # whether episodes are played beside training

    pool: EnvironmentPool
    roles: Roles
    rewards: EpisodeRewards | None

    def __post_init__(self):
        # The error that ended episodes played beside training, as `wait` found it. All others can be taken.
        self.lost: BaseException | None = None
        self.ended: list[Episode] = []  # played beside training and not returned yet; a checkpoint keeps them
        self.begun: list[int] = []  # numbers of optimizer steps before the rounds that `ended` are of
        self._most_tasks = 0  # that were played at the same time

    def wait(self, step: int, for_all: bool = False) -> None:
        """
        Wait for the episodes that would be too old for the next iteration, or for all. Call it before weights change.
        An error that ended some is not raised: it is [`lost`], and a warning counts them. `step` is the number of
        optimizer steps before.
        """

    def play(self, tasks: list[dict[str, Any]], step: int, waits: bool, is_last: bool) -> list[Episode]:
        """
        Play tasks, within a session of the policy's weights, and return the episodes that have ended, also those of
        earlier tasks, each once. `waits` is for all of those that are played beside training. Of these, what is not
        waited for does not begin if no iteration follows.
        """
        self._close_others(len(tasks))
        return self.take() + play_episodes(self.pool, tasks, self.roles, rewards=self.rewards)

    def take(self) -> list[Episode]:
        """Return the episodes of earlier tasks that have ended. Each is returned once."""
        ended, self.ended = self.ended, []
        return ended

    def take_staleness(self, step: int) -> list[float]:
        """Return how many optimizer steps each round that was returned since the last call was old."""
        staleness = [float(step - begun) for begun in self.begun]
        self.begun.clear()
        return staleness

    def rows(self) -> dict[str, list[Any]]:
        """Return the episodes that have ended and were not returned, as rows of a checkpoint by kind."""
        return {"begun": self.begun, "ended": [_row(episode) for episode in self.ended]}

    def load_rows(self, rows: dict[str, list[Any]]) -> None:
        """Load rows from [`rows`]."""
        self.begun = rows.get("begun", [])
        self.ended = [_episode(row) for row in rows.get("ended", [])]

    def stop(self) -> None:
        """Give up what is under way."""

    def _close_others(self, num_tasks: int) -> None:
        """Close the instances of an evaluation that training, which now plays a number of tasks, does not need."""
        self._most_tasks = max(self._most_tasks, num_tasks)
        self.pool.shrink(self._most_tasks)


@dataclass(eq=False)
class AsyncRollouts(Rollouts):
    """
    Play the tasks of each iteration while the model trains, with weights that are at most `max_staleness` optimizer
    steps older than those that train on the episodes.

    Rounds of tasks end in the order in which they began. Those that wait when others have ended are played together.
    An iteration gets the rounds that have ended, and waits only for those that would be too old for the next. A round
    that an error ends takes no other with it. Nobody else plays in the pool while rounds are under way.
    """

    are_beside = True

    players: Roles  # whose generator is [`~generation.engine.SyncedGenerator.beside`] that of `roles`
    max_staleness: int  # optimizer steps from the weights that begin an episode to those that train on it first
    updates_per_iteration: int
    seed: int

    def __post_init__(self):
        super().__post_init__()
        self._num_begun: Counter[int] = Counter()  # rounds, by their step
        self._under_way: deque[_Round] = deque()  # oldest first, those that have ended included
        self._lock = threading.Lock()
        self._unplayed: list[_Round] = []
        self._thread: threading.Thread | None = None  # while there are rounds to play
        self._stopping = threading.Event()

    @property
    def are_under_way(self) -> bool:
        """Whether there are episodes that were not returned yet."""
        return bool(self._under_way or self.ended)

    @property
    def are_held(self) -> bool:
        """Whether there are episodes that go on only with other weights in the engine."""
        return bool(self._under_way) and not self.players.generator.is_open

    def wait(self, step: int, for_all: bool = False) -> None:
        while self._under_way:
            oldest = self._under_way[0]
            is_too_old = oldest.step + self.max_staleness < step + self.updates_per_iteration  # for the next iteration
            if not (for_all or is_too_old or oldest.episodes.done()):
                break
            error = oldest.episodes.exception()  # waits for the end
            self._under_way.popleft()
            if error is None:
                self.ended += oldest.episodes.result()
                self.begun.append(oldest.step)
            else:
                self.lost = error
                logger.warning(
                    f"A round of {len(oldest.tasks)} episodes, begun after step {oldest.step}, is lost: "
                    f"{type(error).__name__}: {printable(str(error))}"
                )
        self.roles.tally.absorb(self.players.tally)

    def play(self, tasks: list[dict[str, Any]], step: int, waits: bool, is_last: bool) -> list[Episode]:
        self.play_on()
        if waits or not is_last:
            # Not drawn from torch, which environments may seed meanwhile. A run that is resumed gets the same seeds.
            rng = random.Random(f"{self.seed} {step} {self._num_begun[step]}")
            self._num_begun[step] += 1
            self._begin(_Round(tasks, rng.getrandbits(62), step))
        if waits:
            self.wait(step, for_all=True)
        return self.take()

    def play_on(self) -> None:
        """Within a session of the policy's weights: let what is under way go on with them."""
        self.roles.generator.share()

    def stop(self) -> None:
        thread = self._thread
        if thread is not None:
            self._stopping.set()
            self.players.generator.stop()
            thread.join(STOPPING_SECONDS)
            with self._lock:  # a thread that goes on for longer takes nothing any more
                self._thread, self._unplayed = None, []
        self.lost = None
        for kept in (self._under_way, self.ended, self.begun, self._num_begun):
            kept.clear()

    def _begin(self, begun: _Round) -> None:
        self._under_way.append(begun)
        with self._lock:
            self._unplayed.append(begun)
            if self._thread is None:
                self._stopping = threading.Event()
                self._thread = threading.Thread(
                    target=self._work, args=(self._stopping,), daemon=True, name="rollouts"
                )
                self._thread.start()

    def _work(self, stopping: threading.Event) -> None:
        while True:
            with self._lock:
                if stopping.is_set():
                    return
                rounds, self._unplayed = self._unplayed, []
                if not rounds:
                    self._thread = None
                    return
            tasks, seed = [task for one in rounds for task in one.tasks], rounds[0].seed
            try:
                self._close_others(len(tasks))
                played = play_episodes(
                    self.pool, tasks, self.players, rewards=self.rewards, seed=seed, stopping=stopping
                )
            except BaseException as error:  # the main thread raises it
                for one in rounds:
                    one.episodes.set_exception(error)
            else:
                episodes = iter(played)
                for one in rounds:
                    one.episodes.set_result([next(episodes) for _ in one.tasks])


def _row(episode: Episode) -> dict[str, Any]:
    parts = {"turns": [vars(turn) for turn in episode.turns], "segments": [_row(one) for one in episode.segments]}
    return {**vars(episode), **parts, "token_ids": episode.token_ids.tolist()}


def _episode(row: dict[str, Any]) -> Episode:
    token_ids = np.array(row["token_ids"], dtype=np.int32)
    return Episode.of_row({**row, "token_ids": token_ids, "segments": tuple(map(_episode, row["segments"]))})
