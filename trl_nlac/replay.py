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

"""Prioritized replay: episodes stored once, transitions sampled in proportion to priority^alpha."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .types import Episode, Sample, Transition, Turn


_TURN = pa.struct(
    {
        "prompt_end": pa.int32(),
        "action_length": pa.int32(),
        "action": pa.string(),
        "next_observation": pa.string(),
        "reward": pa.float64(),
        "prompt_start": pa.int32(),
    }
)
_EPISODE = pa.schema(
    {
        "task": pa.string(),  # JSON
        "first_observation": pa.string(),
        "token_ids": pa.list_(pa.int32()),
        "turns": pa.list_(_TURN),
        "terminated": pa.bool_(),
        "truncated": pa.bool_(),
        "failure": pa.string(),
        "is_log": pa.bool_(),
        "priorities": pa.list_(pa.float64()),
    }
)


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
        importance_sampling_exponent (`float`, *optional*, defaults to `0.0`):
            Beta of the importance weights `(N P(i))^-beta`, scaled so that the largest of a sample is 1.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sampling.
    """

    def __init__(
        self,
        capacity: int,
        priority_exponent: float = 0.1,
        importance_sampling_exponent: float = 0.0,
        seed: int = 0,
    ):
        self.capacity = capacity
        self.priority_exponent = priority_exponent
        self.importance_sampling_exponent = importance_sampling_exponent
        self._rng = np.random.default_rng(seed)
        self._episodes: dict[int, Episode] = {}  # first transition id -> episode, oldest first
        self._next_id = 0  # ids count up for ever; the slot of a transition is its id modulo the capacity
        self._size = 0
        self._max_priority = 1.0
        self._first_ids = np.zeros(capacity, dtype=np.int64)
        self._priorities = np.zeros(capacity)
        # A binary tree of sums in one array: node i has the children 2i and 2i + 1, the leaves are the slots.
        self._num_leaves = 1 << max(1, (capacity - 1).bit_length())
        self._tree = np.zeros(2 * self._num_leaves)

    def __len__(self) -> int:
        """Number of transitions."""
        return self._size

    @property
    def episodes(self) -> list[Episode]:
        """The stored episodes, oldest first."""
        return list(self._episodes.values())

    @property
    def priority_mean(self) -> float:
        return float(self._priorities.sum() / max(1, self._size))

    def add(self, episodes: Iterable[Episode]) -> None:
        """
        Store episodes. Their transitions get the largest priority seen, so that each is soon trained on once.

        Raises:
            ValueError: If an episode has more turns than the buffer holds.
        """
        for episode in episodes:
            if episode.turns:
                self._add(episode, np.full(len(episode.turns), self._max_priority))

    def _add(self, episode: Episode, priorities: np.ndarray) -> None:
        length = len(episode.turns)
        if length > self.capacity:
            raise ValueError(
                f"An episode of {length} turns does not fit into `replay_buffer_size={self.capacity}`. Make it larger."
            )
        while self._size + length > self.capacity:
            oldest = next(iter(self._episodes))
            evicted = self._episodes.pop(oldest)
            self._set(oldest + np.arange(len(evicted.turns)), np.zeros(len(evicted.turns)))
            self._size -= len(evicted.turns)
        ids = self._next_id + np.arange(length)
        self._episodes[self._next_id] = episode
        self._first_ids[ids % self.capacity] = self._next_id
        self._next_id += length
        self._size += length
        self._set(ids, priorities)

    def sample(self, number: int) -> list[Sample]:
        """
        Draw transitions with replacement.

        Raises:
            ValueError: If the buffer is empty.
        """
        if not self._size:
            raise ValueError("The replay buffer is empty: no episode with at least one turn was added.")
        remainder = self._rng.random(number) * self._tree[1]
        node = np.ones(number, dtype=np.int64)
        while node[0] < self._num_leaves:
            left = self._tree[2 * node]
            # Never walk into an empty subtree, however the sums were rounded.
            right = (remainder >= left) & (self._tree[2 * node + 1] > 0) | (left == 0)
            remainder -= np.where(right, left, 0.0)
            node = 2 * node + right
        slots = node - self._num_leaves
        probabilities = self._tree[node] / self._tree[1]
        weights = (self._size * probabilities) ** -self.importance_sampling_exponent
        weights /= weights.max()
        newest = self._next_id - 1
        ids = newest - (newest - slots) % self.capacity
        return [
            Sample(Transition(self._episodes[first], int(i - first)), int(i), float(weight))
            for i, first, weight in zip(ids, self._first_ids[slots].tolist(), weights, strict=True)
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
        kept = ids >= self._next_id - self._size
        if kept.any():
            values = np.maximum(values[kept], 1e-6)  # a priority of zero would never be sampled again
            self._max_priority = max(self._max_priority, float(values.max()))
            self._set(ids[kept], values)

    def _set(self, ids: np.ndarray, priorities: np.ndarray) -> None:
        slots = ids % self.capacity
        self._priorities[slots] = priorities
        nodes = slots + self._num_leaves
        self._tree[nodes] = np.where(priorities > 0, priorities**self.priority_exponent, 0.0)
        while nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self._tree[nodes] = self._tree[2 * nodes] + self._tree[2 * nodes + 1]

    def save(self, directory: str | Path) -> None:
        """Write the buffer to `episodes.parquet` and `replay.json` in `directory`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        rows = []
        for first, episode in self._episodes.items():
            slots = (first + np.arange(len(episode.turns))) % self.capacity
            rows.append({**episode_to_row(episode), "priorities": self._priorities[slots].tolist()})
        pq.write_table(pa.Table.from_pylist(rows, schema=_EPISODE), directory / "episodes.parquet")
        state = {"max_priority": self._max_priority, "rng": self._rng.bit_generator.state, "next_id": self._next_id}
        (directory / "replay.json").write_text(json.dumps(state))

    def load(self, directory: str | Path) -> None:
        """Replace the content by what [`PrioritizedReplay.save`] wrote. Sampling goes on exactly where it was."""
        directory = Path(directory)
        state = json.loads((directory / "replay.json").read_text())
        self.__init__(self.capacity, self.priority_exponent, self.importance_sampling_exponent)
        rows = pq.read_table(directory / "episodes.parquet").to_pylist()
        self._next_id = state["next_id"] - sum(len(row["turns"]) for row in rows)
        for row in rows:
            self._add(episode_from_row(row), np.array(row["priorities"]))
        self._max_priority = state["max_priority"]
        self._rng.bit_generator.state = state["rng"]


def episode_to_row(episode: Episode) -> dict[str, Any]:
    """An episode as a row of a table."""
    return {
        "task": json.dumps(episode.task),
        "first_observation": episode.first_observation,
        "token_ids": episode.token_ids.tolist(),
        "turns": [vars(turn) for turn in episode.turns],
        "terminated": episode.terminated,
        "truncated": episode.truncated,
        "failure": episode.failure,
        "is_log": episode.is_log,
    }


def episode_from_row(row: dict[str, Any]) -> Episode:
    """The inverse of [`episode_to_row`]."""
    return Episode(
        task=json.loads(row["task"]),
        first_observation=row["first_observation"],
        token_ids=np.array(row["token_ids"], dtype=np.int32),
        turns=tuple(Turn(**turn) for turn in row["turns"]),
        terminated=row["terminated"],
        truncated=row["truncated"],
        failure=row["failure"],
        is_log=row["is_log"],
    )
