# SPDX-License-Identifier: Apache-2.0

import json
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from helpers.replay_utils import make_target
from helpers.testing_utils import make_episode

from trl_nlac import PrioritizedReplay
from trl_nlac.replay.files import episode_lengths, read_episodes
from trl_nlac.replay.resharding import deal_episodes


def save_ranks(folder: Path, world_size: int, seed: int, capacity: int = 300) -> list[Path]:
    rng = np.random.default_rng(seed)
    folders = [folder / f"rank_{rank}" for rank in range(world_size)]
    for rank, path in enumerate(folders):
        replay = PrioritizedReplay(capacity, seed=rank)
        if rank != 2:
            for i in range(rng.integers(3, 130)):
                length = int(rng.integers(1, 7))
                (first,) = replay.add([make_episode(length, text=f"{rank} {i}")])
            ids = np.arange(first + length)  # evicted transitions are skipped
            replay.update_priorities(ids, rng.exponential(size=len(ids)))
            for sample in replay.sample(rank + 1):
                replay.targets.keep(sample, make_target(sample.transition, f"of {rank}"), version=rank)
        replay.save(path)
    return folders


def read(folder: Path) -> tuple[list[tuple[str, list[float], list[str | None]]], dict]:
    episodes = read_episodes(folder / "episodes.parquet")
    content = [(stored.episode.task["name"], stored.priorities.tolist(), stored.targets) for stored in episodes]
    return content, json.loads((folder / "replay.json").read_text())


class TestResharding:
    @pytest.mark.parametrize("saved_world_size", [1, 2, 3, 5, 8])
    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
    def test_every_transition_once(self, tmp_path, saved_world_size, world_size):
        folders = save_ranks(tmp_path, saved_world_size, seed=10 * saved_world_size + world_size)
        contents, states = zip(*map(read, folders), strict=True)
        start = max(state["next_id"] for state in states)
        shares = [PrioritizedReplay(3000, seed=50 + rank) for rank in range(world_size)]
        for rank, share in enumerate(shares):
            PrioritizedReplay(1, seed=50 + rank).save(tmp_path / "new")
            fresh = read(tmp_path / "new")[1]
            share.load_share(folders, rank, world_size)
            share.save(tmp_path / f"share_{rank}")
            content, state = read(tmp_path / f"share_{rank}")
            assert state["next_id"] == start + len(share)
            assert state["rng"] == (states[rank] if rank < saved_world_size else fresh)["rng"]
            for source in range(saved_world_size):  # the order by age is kept
                numbers = [int(name.split()[1]) for name, _, _ in content if name.startswith(f"{source} ")]
                assert numbers == sorted(numbers)
            again = PrioritizedReplay(3000, seed=50 + rank)
            again.load_share(folders, rank, world_size)
            again.save(tmp_path / "again")
            assert read(tmp_path / "again") == (content, state)
        of_shares = [read(tmp_path / f"share_{rank}")[0] for rank in range(world_size)]
        assert sorted(chain(*of_shares), key=str) == sorted(chain(*contents), key=str)
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 6  # turns of the longest episode
        for share in shares:
            if len(share):
                ids = {sample.transition_id for sample in share.sample(100)}
                assert ids <= set(range(start, start + len(share)))

    def test_the_oldest_of_all_leave_first(self):
        """Age is the number of later transitions in the same buffer."""
        sources, owners = deal_episodes([np.array([3, 1, 1]), np.array([2, 2])], world_size=2)
        assert sources.tolist() == [0, 1, 0, 0, 1]  # with 2, 2, 1, 0 and 0 transitions after them
        assert owners.tolist() == [0, 1, 1, 0, 1]

    def test_a_share_that_does_not_fit_is_an_error(self, tmp_path):
        folders = save_ranks(tmp_path, 2, seed=0)
        sizes = [episode_lengths(folder / "episodes.parquet").sum() for folder in folders]
        with pytest.raises(ValueError, match=f"this one would hold {sum(sizes)} .*`replay_buffer_size` is 100"):
            PrioritizedReplay(100).load_share(folders, 0, 1)

    def test_no_id_is_used_twice(self, tmp_path):
        folders = save_ranks(tmp_path, 2, seed=0, capacity=30)  # ids beyond the capacity
        ids = [read(folder)[1]["next_id"] for folder in folders]
        for rank in range(3):
            share = PrioritizedReplay(60)
            share.load_share(folders, rank, 3)
            first = share.sample(1)[0].transition_id
            assert max(ids) > 60 and first >= max(ids) and share.add([make_episode()])[0] > first
