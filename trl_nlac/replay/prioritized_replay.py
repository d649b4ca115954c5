# SPDX-License-Identifier: Apache-2.0

"""Prioritized replay: episodes stored once, transitions sampled in proportion to priority^alpha."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..types import Episode, Sample, Transition
from ..written_files import replaced, write_json
from .files import StoredEpisode, episode_lengths, read_episodes, write_episodes
from .kept_targets import KeptTargets
from .resharding import read_share
from .store import EpisodeStore
from .sum_tree import SumTree


_LEFT_OUT = float(np.finfo(np.float64).tiny)  # priority of a transition that is left out of the draws
_WEIGHT_LEFT_OUT = 1e-30  # nothing beside another transition, and an equal share where all are left out


class PrioritizedReplay:
    """
    Replay buffer D of algorithm 1, with P(i) proportional to priority_i^alpha
    (https://huggingface.co/papers/1511.05952). A transition is an index into its episode; the oldest episodes leave
    first, and whole.

    Args:
        capacity (`int`):
            Number of transitions kept.
        priority_exponent (`float`, *optional*, defaults to `0.1`):
            Alpha; `0` samples uniformly.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sampling.

    Attributes:
        targets ([`~replay.kept_targets.KeptTargets`]):
            Bellman targets of its transitions. They leave with their episodes.
    """

    def __init__(self, capacity: int, priority_exponent: float = 0.1, seed: int = 0):
        self.capacity = capacity
        self.priority_exponent = priority_exponent
        self._rng = np.random.default_rng(seed)
        self.targets = KeptTargets()
        self._store = EpisodeStore()  # by first transition id
        self._clear(0)

    def __len__(self) -> int:
        """Number of transitions."""
        return self._next_id - self._first_id

    @property
    def episodes(self) -> list[Episode]:
        """The stored episodes, oldest first. They are decompressed all at once, which takes memory."""
        return [self._store[number] for number in self._store]

    def newest(self, number: int) -> list[Episode]:
        """Return the newest episodes, oldest first."""
        numbers = list(self._store)[-number:]
        return [self._store[i] for i in numbers]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the buffer: transitions, those of them that are left out, and the mean priority."""
        return {
            "replay/size": float(len(self)),
            "replay/num_left_out": float(self.num_left_out),
            "replay/priority_mean": self.priority_mean,
        }

    @property
    def priority_mean(self) -> float:
        """Mean priority of the stored transitions; 0 if there are none."""
        return float(self._priorities.sum() / max(1, len(self)))

    def add(self, episodes: Iterable[Episode]) -> list[int]:
        """
        Store episodes. Their transitions get the largest priority of those that are stored; the first ones 1.

        Returns:
            `list[int]`: the id of the first transition of each episode; the ids of the others follow it. An episode
            without a turn is not stored and has -1.

        Raises:
            ValueError: If an episode has more turns than the buffer holds.
            TypeError: If a task cannot be written as JSON.
        """
        return self._extend(
            StoredEpisode(episode, np.full(len(episode.turns), self._max_priority()), [None] * len(episode.turns))
            for episode in episodes
        )

    def fill(self, episodes: Sequence[Episode]) -> None:
        """
        Store episodes that must all fit.

        Raises:
            ValueError: If they do not.
            TypeError: If a task cannot be written as JSON.
        """
        number = sum(len(episode.turns) for episode in episodes)
        if len(self) + number > self.capacity:
            raise ValueError(
                f"{number} transitions do not fit into `replay_buffer_size={self.capacity}`. Make it larger, or "
                "select episodes."
            )
        self.add(episodes)

    def _extend(self, episodes: Iterable[StoredEpisode]) -> list[int]:
        first, end = self._first_id, self._next_id
        numbers = []
        try:
            for stored in episodes:
                numbers.append(self._next_id if stored.episode.turns else -1)
                if stored.episode.turns:
                    self._append(stored)
            return numbers
        finally:
            # Every slot that changed, once: those of transitions that left and of new ones.
            changed = np.concatenate([np.arange(first, self._first_id), np.arange(end, self._next_id)])
            if len(changed):
                self._weigh(np.unique(changed % self.capacity))

    def _append(self, stored: StoredEpisode) -> None:
        length = len(stored.episode.turns)
        if length > self.capacity:
            raise ValueError(
                f"An episode of {length} turns does not fit into `replay_buffer_size={self.capacity}`. Make it larger."
            )
        self._store.append(self._next_id, stored.episode)
        while len(self) + length > self.capacity:
            self._store.pop_oldest()
            evicted, self._first_id = self._first_id, next(iter(self._store))
            self._priorities[np.arange(evicted, self._first_id) % self.capacity] = 0
            self.targets.drop(range(evicted, self._first_id))
        slots = np.arange(self._next_id, self._next_id + length) % self.capacity
        # How many slots there are depends on the number of ids alone, so that sums over them are reproducible.
        added = min(self.capacity, 1 << (self._next_id + length - 1).bit_length()) - len(self._priorities)
        if added > 0:
            self._episode_ids = np.concatenate([self._episode_ids, np.zeros(added, dtype=np.int64)])
            self._priorities = np.concatenate([self._priorities, np.zeros(added)])
        self._episode_ids[slots] = self._next_id
        self._priorities[slots] = stored.priorities
        for transition_id, target in enumerate(stored.targets, self._next_id):
            if target is not None:
                self.targets.load(transition_id, target)
        self._next_id += length

    def sample(self, number: int) -> list[Sample]:
        """
        Draw transitions with replacement. Those of the same episode share it.

        Raises:
            ValueError: If the buffer is empty.
        """
        if not len(self):
            raise ValueError("The replay buffer is empty: no episode with at least one turn was added.")
        slots = self._tree.draw(self._rng.random(number))
        episode_ids = self._episode_ids[slots]
        indices = (slots - episode_ids) % self.capacity
        episodes = {i: self._store[i] for i in episode_ids.tolist()}
        return [
            Sample(Transition(episodes[i], index), i + index, priority)
            for i, index, priority in zip(
                episode_ids.tolist(), indices.tolist(), self._priorities[slots].tolist(), strict=True
            )
        ]

    def update_priorities(self, transition_ids: Sequence[int], priorities: Sequence[float]) -> None:
        """
        Set the priorities (critic losses) of transitions; those that have left the buffer are skipped.

        Raises:
            ValueError: If a priority is negative or not finite.
        """
        ids, values = np.asarray(transition_ids, dtype=np.int64), np.asarray(priorities, dtype=np.float64)
        if not np.isfinite(values).all() or (values < 0).any():
            raise ValueError(f"Priorities must be finite and not negative, got {values.tolist()}.")
        kept = ids >= self._first_id
        if kept.any():
            values = np.maximum(values[kept], 1e-6)  # a priority of zero would never be sampled again
            slots = ids[kept] % self.capacity
            self._priorities[slots] = values
            self._weigh(slots)

    def leave_out(self, transition_ids: Sequence[int]) -> None:
        """Leave transitions out of the draws, for as long as there are others."""
        ids = np.asarray(transition_ids, dtype=np.int64)
        slots = ids[ids >= self._first_id] % self.capacity
        if len(slots):
            self._priorities[slots] = _LEFT_OUT
            self._weigh(slots)

    def take_in(self) -> None:
        """Take the transitions that were left out into the draws again, with the largest priority."""
        slots = np.flatnonzero(self._priorities == _LEFT_OUT)
        if len(slots):
            self._priorities[slots] = self._max_priority()
            self._weigh(slots)

    @property
    def num_left_out(self) -> int:
        """Number of stored transitions that are left out of the draws."""
        return int((self._priorities == _LEFT_OUT).sum())

    def _max_priority(self) -> float:
        """Return the largest priority of a stored transition; 1 where none has one."""
        largest = float(self._priorities.max())
        return largest if largest > _LEFT_OUT else 1.0

    def _weigh(self, slots: np.ndarray) -> None:
        """Update the sampling weights of slots; free slots have none."""
        priorities = self._priorities[slots]
        weights = np.where(priorities > 0, priorities**self.priority_exponent, 0.0)
        self._tree.set(slots, np.where(priorities == _LEFT_OUT, _WEIGHT_LEFT_OUT, weights))

    def save(self, directory: str | Path) -> None:
        """Write the buffer to `episodes.parquet` and `replay.json` in `directory`."""
        directory = Path(directory)
        with replaced(directory / "episodes.parquet") as written:
            write_episodes(written, self._items())
        state = {"rng": self._rng.bit_generator.state, "next_id": self._next_id}
        write_json(directory / "replay.json", state)

    def _items(self) -> Iterator[StoredEpisode]:
        """The episodes with their priorities and targets, oldest first."""
        for number in self._store:
            episode = self._store[number]
            ids = range(number, number + len(episode.turns))
            yield StoredEpisode(
                episode, self._priorities[np.array(ids) % self.capacity], [self.targets.dump(i) for i in ids]
            )

    def load(self, directory: str | Path) -> None:
        """Load a buffer from [`PrioritizedReplay.save`]. Sampling continues exactly where it was."""
        path = Path(directory) / "episodes.parquet"
        state = json.loads((path.parent / "replay.json").read_text())
        self._clear(state["next_id"] - int(episode_lengths(path).sum()))
        self._extend(read_episodes(path))
        self._rng.bit_generator.state = state["rng"]

    def load_share(self, directories: Sequence[str | Path], rank: int, world_size: int) -> None:
        """
        Replace the content by this process's share of the buffers that another number of processes saved, see
        [`~replay.resharding.read_share`]. Transitions get new ids, higher than all that were saved: records name an
        episode by its process and id. Sampling continues where the saved process of the same rank was; if there was
        none, with the seed of this buffer.

        Args:
            directories (`Sequence[str | Path]`):
                The saved buffers, in the order of their ranks.
            rank (`int`):
                This process.
            world_size (`int`):
                Number of processes now.

        Raises:
            ValueError: If the share does not fit.
        """
        directories = [Path(directory) for directory in directories]
        states = [json.loads((directory / "replay.json").read_text()) for directory in directories]
        start = max(state["next_id"] for state in states)
        self._clear(start)
        self._extend(read_share([directory / "episodes.parquet" for directory in directories], rank, world_size))
        if self._first_id > start:
            raise ValueError(
                f"The buffers of {len(states)} processes do not fit into those of {world_size}: this one would hold "
                f"{self._next_id - start} transitions, `replay_buffer_size` is {self.capacity}. Make it larger."
            )
        if rank < len(states):
            self._rng.bit_generator.state = states[rank]["rng"]

    def _clear(self, next_id: int) -> None:
        """Drop everything and continue with `next_id`."""
        self._store.clear()
        self.targets.clear()
        # Ids count up for ever; the slot of a transition is its id modulo the capacity.
        self._first_id = self._next_id = next_id  # those from the first to before the next are stored
        # By slot; they grow with the ids, up to the capacity.
        self._episode_ids = np.zeros(1, dtype=np.int64)  # first transition id of the episode
        self._priorities = np.zeros(1)
        self._tree = SumTree()
