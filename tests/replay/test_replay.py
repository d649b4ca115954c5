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

import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.testing_utils import OPENING, make_episode

from trl_nlac import PrioritizedReplay
from trl_nlac.replay import files, store
from trl_nlac.replay.files import episode_lengths, read_episodes, write_episodes
from trl_nlac.replay.resharding import deal_episodes
from trl_nlac.replay.store import decode_episode, encode_episode
from trl_nlac.replay.sum_tree import SumTree
from trl_nlac.types import Episode, Turn


class TestPrioritizedReplay:
    @pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
    def test_sampling_follows_priorities(self, alpha):
        replay = PrioritizedReplay(capacity=13, priority_exponent=alpha, seed=1)
        replay.add([make_episode(num_turns=5), make_episode(num_turns=5)])
        priorities = np.array([0.1, 0.5, 1, 2, 5, 0.3, 0.2, 4, 1, 1])
        replay.update_priorities(range(10), priorities)
        samples = replay.sample(20_000)
        counts = np.bincount([sample.transition_id for sample in samples], minlength=10)
        expected = priorities**alpha / (priorities**alpha).sum() * 20_000
        assert ((counts - expected) ** 2 / expected).sum() < 21.67  # 1 % point of chi-square, 9 degrees of freedom

    def test_new_transitions_get_the_largest_priority_seen(self):
        replay = PrioritizedReplay(capacity=100, priority_exponent=1.0)
        replay.add([make_episode()])
        replay.update_priorities([0, 1], [0.5, 7.0])
        replay.add([make_episode(num_turns=1)])
        counts = np.bincount([sample.transition_id for sample in replay.sample(10_000)])
        assert counts[2] == pytest.approx(10_000 * 7 / 14.5, rel=0.05)

    def test_oldest_episodes_leave_whole(self):
        replay = PrioritizedReplay(capacity=7)
        for i in range(10):
            replay.add([make_episode(num_turns=2 + i % 2, text=str(i))])
        assert [episode.task["name"] for episode in replay.episodes] == ["8", "9"]
        assert len(replay) == 5
        for sample in replay.sample(200):
            assert sample.transition.episode in replay.episodes
            assert sample.transition_id in range(20, 25)

    def test_priorities_of_evicted_transitions_are_skipped(self):
        replay = PrioritizedReplay(capacity=4, priority_exponent=1.0)
        replay.add([make_episode(text="old"), make_episode(text="kept"), make_episode(text="new")])
        replay.update_priorities([0, 1], [1000.0, 1000.0])
        names = [sample.transition.episode.task["name"] for sample in replay.sample(1000)]
        assert 400 < names.count("new") < 600

    def test_importance_weights(self):
        replay = PrioritizedReplay(capacity=4, priority_exponent=1.0, importance_sampling_exponent=1.0)
        replay.add([make_episode()])
        replay.update_priorities([0, 1], [1.0, 4.0])
        weights = {sample.transition_id: sample.weight for sample in replay.sample(100)}
        assert weights == {0: pytest.approx(1.0), 1: pytest.approx(0.25)}

    def test_saved_buffer_continues_exactly(self, tmp_path):
        replay = PrioritizedReplay(capacity=9, seed=3)
        replay.add([make_episode(num_turns=4, text=str(i), terminated=bool(i % 2)) for i in range(5)])
        replay.update_priorities([12, 13, 17], [0.5, 2.0, 3.0])
        replay.sample(10)
        replay.save(tmp_path)
        loaded = PrioritizedReplay(capacity=9, seed=99)
        loaded.load(tmp_path)
        for _ in range(3):
            ours, theirs = replay.sample(50), loaded.sample(50)
            assert [sample.transition_id for sample in ours] == [sample.transition_id for sample in theirs]
            for a, b in zip(ours, theirs, strict=True):
                assert a.transition.turn == b.transition.turn
                assert a.transition.terminated == b.transition.terminated
                np.testing.assert_array_equal(a.transition.episode.token_ids, b.transition.episode.token_ids)
            for buffer in (replay, loaded):
                buffer.add([make_episode(num_turns=3)])

    def test_empty_buffer_round_trip(self, tmp_path):
        PrioritizedReplay(capacity=4).save(tmp_path)
        loaded = PrioritizedReplay(capacity=4)
        loaded.load(tmp_path)
        assert len(loaded) == 0

    def test_errors(self):
        replay = PrioritizedReplay(capacity=2)
        with pytest.raises(ValueError, match="empty"):
            replay.sample(1)
        with pytest.raises(ValueError, match="replay_buffer_size=2"):
            replay.add([make_episode(num_turns=3)])
        replay.add([make_episode()])
        with pytest.raises(ValueError, match="finite"):
            replay.update_priorities([0], [float("nan")])


class TestSumTree:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100])
    def test_draws_by_cumulative_sums(self, size):
        rng = np.random.default_rng(size)
        tree, weights = SumTree(size), np.zeros(size)
        for _ in range(20):
            indices = rng.integers(size, size=5)
            weights[indices] = rng.integers(0, 4, size=5) * 0.25  # sums are exact
            tree.set(indices, weights[indices])
            assert tree.total == weights.sum()
            if tree.total:
                fractions = rng.random(50)
                drawn, found = tree.draw(fractions)
                expected = np.searchsorted(weights.cumsum(), fractions * weights.sum(), side="right")
                assert drawn.tolist() == expected.tolist() and found.tolist() == weights[drawn].tolist()

    def test_rounding_never_draws_what_has_no_weight(self):
        tree = SumTree(4)
        tree.set(np.array([0, 2]), np.array([0.3, 0.7]))
        largest = np.nextafter(1, 0)
        assert largest * 1.0 - 0.3 >= 0.7  # as if it were past the third index
        assert tree.draw(np.array([0.0, 0.5, largest]))[0].tolist() == [0, 2, 2]


def make_text_episode(rng, num_turns: int = 3, num_tokens: int = 400) -> Episode:
    """An episode whose token ids cannot be compressed."""
    token_ids = rng.integers(2**31, size=num_tokens, dtype=np.int32)
    turns = tuple(Turn(4 * i + 2, 2, f"act {i}", f"seen {i}", 0.0) for i in range(num_turns))
    return Episode({"name": str(rng.integers(2**31))}, OPENING, token_ids, turns, True, False)


def assert_same_episode(ours: Episode, theirs: Episode) -> None:
    for name, value in vars(ours).items():
        if name != "token_ids":
            assert vars(theirs)[name] == value, name
    np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
    assert theirs.token_ids.dtype == np.int32


ODD_EPISODE = Episode(
    task={"name": "naïve 東京 🙂", "list": [1, 2.5, None, {"deep": True}], "quote": '"\\\n\x00'},
    opening=({"role": "system", "content": "東京 \x00"}, {"role": "user", "content": "\ufeffبداية\r\n\u2028"}),
    token_ids=np.array([0, 2**31 - 1, 151_643], dtype=np.int32),
    turns=(
        Turn(1, 1, "", "", -0.0),
        Turn(2, 1, "<|im_end|> 'act'", "🙂" * 300, 0.1 + 0.2, prompt_start=1),
        Turn(3, 0, "a\tb", "end", 1e-300),
    ),
    terminated=False,
    truncated=True,
    failure="timeout: TimeoutError: é took 'too' long",
    is_log=True,
    tools=({"type": "function", "function": {"name": "é", "parameters": {}}},),
)


class TestRecords:
    @pytest.mark.parametrize("episode", [ODD_EPISODE, make_episode(), make_episode(num_turns=0, terminated=False)])
    def test_nothing_is_lost(self, episode, tmp_path):
        assert_same_episode(episode, decode_episode(encode_episode(episode)))
        priorities = np.linspace(0.1, 1 / 3, len(episode.turns))
        write_episodes(tmp_path / "episodes.parquet", [(episode, priorities)])
        ((read, read_priorities),) = read_episodes(tmp_path / "episodes.parquet")
        assert_same_episode(episode, read)
        assert read_priorities.tolist() == priorities.tolist()

    def test_tasks_that_cannot_be_stored(self):
        replay = PrioritizedReplay(capacity=10)
        replay.add([make_episode()])
        odd = replace(make_episode(), task={"when": {1, 2}})
        with pytest.raises(TypeError, match="columns that JSON can hold"):
            replay.add([make_episode(), odd, make_episode()])
        assert len(replay) == 4  # what came before is stored, and can be sampled
        assert {sample.transition_id for sample in replay.sample(200)} == {0, 1, 2, 3}

    def test_samples_of_an_episode_share_it(self):
        replay = PrioritizedReplay(capacity=10)
        episode = make_episode(num_turns=5)
        replay.add([episode])
        assert replay.sample(1)[0].transition.episode is episode
        del episode
        samples = replay.sample(20)
        assert len({id(sample.transition.episode.token_ids) for sample in samples}) == 1
        assert replay.sample(1)[0].transition.episode is samples[0].transition.episode

    def test_memory_is_less_than_the_token_ids(self):
        """Of episodes that nobody holds, in what Python and numpy allocate."""
        rng = np.random.default_rng(0)
        replay = PrioritizedReplay(capacity=3000)
        tracemalloc.start()
        num_bytes = 0
        for _ in range(1000):
            episode = make_text_episode(rng, num_tokens=2000)
            episode = replace(episode, token_ids=episode.token_ids % 2**17)
            num_bytes += episode.token_ids.nbytes
            replay.add([episode])
        del episode
        memory, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(replay) == 3000 and memory < num_bytes


SPILL_SCRIPT = """
import ctypes
import re
import sys
from pathlib import Path

import numpy as np
from test_replay import make_text_episode

from trl_nlac import PrioritizedReplay


def resident():
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return 1024 * int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))


def used(limit, num_episodes):
    rng = np.random.default_rng(0)
    before = resident()
    replay = PrioritizedReplay(3000, memory_limit=limit, spill_directory=sys.argv[1])
    for _ in range(num_episodes):
        replay.add([make_text_episode(rng, num_tokens=24_000)])
    for _ in range(10):
        replay.sample(64)
    return resident() - before


used(None, 10)  # what is loaded once
print(used(2**24, 1100), used(None, 1100))
"""


class TestSpill:
    @pytest.fixture(autouse=True)
    def small_files(self, monkeypatch):
        monkeypatch.setattr(store, "MAX_FILE_SIZE", 10_000)

    @pytest.mark.parametrize("limit", [0, 5_000, 40_000])
    def test_content_is_the_same(self, tmp_path, limit):
        """Added, evicted, sampled, updated and saved as without a limit; memory and disk hold what they should."""
        rng = np.random.default_rng(0)
        folder = tmp_path / "made" / "when needed"
        replays = [
            PrioritizedReplay(100, seed=5, memory_limit=memory, spill_directory=folder) for memory in (None, limit)
        ]
        for step in range(40):
            added = [make_text_episode(rng, int(rng.integers(1, 6)), int(rng.integers(20, 900))) for _ in range(5)]
            if step % 10 == 3:  # more than a file holds
                added.append(make_text_episode(rng, 3, 5_000))
            for replay in replays:
                replay.add(added)
            del added
            samples = [replay.sample(30) for replay in replays]
            for ours, theirs in zip(*samples, strict=True):
                assert ours.transition_id == theirs.transition_id and ours.weight == theirs.weight
                assert_same_episode(ours.transition.episode, theirs.transition.episode)
            priorities = rng.exponential(size=30)
            for replay in replays:
                replay.update_priorities([sample.transition_id for sample in samples[0]], priorities)
            del samples, ours, theirs
            store = replays[1]._store
            assert store.memory_size == sum(map(len, store._in_memory.values())) <= limit
            assert store.memory_size + store.disk_size == replays[0]._store.memory_size
            assert not any(folder.iterdir()) if folder.exists() else not store.disk_size  # the files have no names
        for ours, theirs in zip(*(replay.episodes for replay in replays), strict=True):
            assert_same_episode(ours, theirs)
        for name, replay in zip(("whole", "spilled"), replays, strict=True):
            replay.save(tmp_path / name)
        saved = [pq.read_table(tmp_path / name / "episodes.parquet") for name in ("whole", "spilled")]
        assert saved[0].equals(saved[1])

    def test_disk_space_is_given_back(self):
        rng = np.random.default_rng(0)
        replay = PrioritizedReplay(30, memory_limit=0)
        files = []
        for _ in range(100):
            replay.add([make_text_episode(rng)])
            file = next(reversed(replay._store._on_disk.values())).file
            if not files or files[-1] is not file:
                files.append(file)
        in_use = {id(place.file) for place in replay._store._on_disk.values()}
        assert len(files) > 10 and len(in_use) <= 3
        assert [file.closed for file in files] == [id(file) not in in_use for file in files]
        replay._store.clear()
        assert all(file.closed for file in files)

    def test_loading_keeps_to_the_limit(self, tmp_path):
        rng = np.random.default_rng(0)
        replay = PrioritizedReplay(100)
        replay.add([make_text_episode(rng) for _ in range(30)])
        replay.save(tmp_path)
        loaded = PrioritizedReplay(100, memory_limit=20_000)
        loaded.load(tmp_path)
        assert 0 < loaded._store.memory_size <= 20_000 < loaded._store.disk_size
        for ours, theirs in zip(replay.episodes, loaded.episodes, strict=True):
            assert_same_episode(ours, theirs)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_resident_memory(self, tmp_path):
        """96 MB of records that cannot be compressed: with a limit of 16 MiB, at most 8 MiB more than that."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        command = [sys.executable, "-c", SPILL_SCRIPT, str(tmp_path)]
        finished = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert finished.returncode == 0, finished.stderr
        spilled, whole = map(int, finished.stdout.split())
        assert spilled <= 24 * 2**20 and whole >= 90 * 2**20, (spilled, whole)
        assert not any(tmp_path.iterdir())


class TestFiles:
    def test_columns(self, tmp_path):
        """What users and other tools read."""
        replay = PrioritizedReplay(capacity=10)
        replay.add([make_episode(num_turns=2)])
        replay.update_priorities([1], [0.25])
        replay.save(tmp_path)
        (row,) = pq.read_table(tmp_path / "episodes.parquet").to_pylist()
        assert row["task"] == '{"name": "seen"}' and row["priorities"] == [1.0, 0.25]
        assert row["token_ids"] == list(range(8)) and row["terminated"] and row["failure"] is None
        assert row["turns"][1] == vars(make_episode(num_turns=2).turns[1])
        assert list(row) == [*(name for name in vars(make_episode()) if name != "extra"), "priorities"]

    def test_saving_and_loading_stream(self, tmp_path, monkeypatch):
        """Row groups are bounded, and never more episodes alive than those of one."""
        monkeypatch.setattr(files, "ROW_GROUP_TOKENS", 4000)
        rng = np.random.default_rng(0)
        replay = PrioritizedReplay(capacity=3000)
        replay.add(make_text_episode(rng) for _ in range(500))
        most = 0
        decode = store.decode_episode

        def counting(record):
            nonlocal most
            most = max(most, len(replay._store._alive))
            return decode(record)

        monkeypatch.setattr(store, "decode_episode", counting)
        replay.save(tmp_path)
        with pq.ParquetFile(tmp_path / "episodes.parquet") as file:
            assert file.num_row_groups >= 50
            assert max(file.metadata.row_group(i).num_rows for i in range(50)) == 10
        assert 0 < most <= 11
        loaded = PrioritizedReplay(capacity=3000)
        loaded.load(tmp_path)
        assert len(loaded._store._alive) == 0 and len(loaded) == 1500
        for ours, theirs in zip(replay.episodes, loaded.episodes, strict=True):
            assert_same_episode(ours, theirs)

    def test_loading_replaces_the_content(self, tmp_path):
        replay = PrioritizedReplay(capacity=20, priority_exponent=1.0)
        replay.add([make_episode(num_turns=2, text="saved")])
        replay.save(tmp_path)
        loaded = PrioritizedReplay(capacity=20, priority_exponent=1.0)
        loaded.add([make_episode(num_turns=5, text="old") for _ in range(3)])
        loaded.update_priorities(range(15), [100.0] * 15)
        loaded.load(tmp_path)
        assert len(loaded) == 2 and loaded.priority_mean == 1.0
        assert {sample.transition_id for sample in loaded.sample(100)} == {0, 1}
        loaded.add([make_episode(num_turns=1, text="new")])
        assert np.bincount([sample.transition_id for sample in loaded.sample(3000)]).min() > 900

    def test_a_smaller_buffer_loads_the_newest(self, tmp_path):
        replay = PrioritizedReplay(capacity=20)
        replay.add([make_episode(num_turns=2, text=str(i)) for i in range(10)])
        replay.save(tmp_path)
        loaded = PrioritizedReplay(capacity=7)
        loaded.load(tmp_path)
        assert [episode.task["name"] for episode in loaded.episodes] == ["7", "8", "9"]
        assert {sample.transition_id for sample in loaded.sample(200)} == set(range(14, 20))


def save_ranks(folder: Path, world_size: int, seed: int, capacity: int = 300) -> list[Path]:
    """Buffers of several processes, some of them full, one of them empty if there are three or more."""
    rng = np.random.default_rng(seed)
    folders = [folder / f"rank_{rank}" for rank in range(world_size)]
    for rank, path in enumerate(folders):
        replay = PrioritizedReplay(capacity, seed=rank)
        if rank != 2:
            for i in range(rng.integers(3, 130)):
                replay.add([make_episode(int(rng.integers(1, 7)), text=f"{rank} {i}")])
            ids = np.arange(replay._first_id, replay._next_id)
            replay.update_priorities(ids, rng.exponential(size=len(ids)))
            replay.sample(rank + 1)
        replay.save(path)
    return folders


def content(replay: PrioritizedReplay) -> list[tuple[str, list[float]]]:
    return [(episode.task["name"], priorities.tolist()) for episode, priorities in replay._items()]


class TestResharding:
    @pytest.mark.parametrize("saved_world_size", [1, 2, 3, 5, 8])
    @pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
    def test_every_transition_once(self, tmp_path, saved_world_size, world_size):
        folders = save_ranks(tmp_path, saved_world_size, seed=10 * saved_world_size + world_size)
        saved = [PrioritizedReplay(300) for _ in folders]
        for replay, folder in zip(saved, folders, strict=True):
            replay.load(folder)
        shares = [PrioritizedReplay(3000, seed=50 + rank) for rank in range(world_size)]
        for rank, share in enumerate(shares):
            share.load_share(folders, rank, world_size)
        assert sorted(pair for share in shares for pair in content(share)) == sorted(
            pair for replay in saved for pair in content(replay)
        )
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 6  # turns of the longest episode
        for rank, share in enumerate(shares):
            assert share._max_priority == max(replay._max_priority for replay in saved)
            assert share._next_id == len(share)
            for source in range(saved_world_size):  # what is older stays older
                numbers = [int(name.split()[1]) for name, _ in content(share) if name.startswith(f"{source} ")]
                assert numbers == sorted(numbers)
            again = PrioritizedReplay(3000, seed=50 + rank)
            again.load_share(folders, rank, world_size)
            assert content(again) == content(share)
            source = saved[rank] if rank < saved_world_size else PrioritizedReplay(1, seed=50 + rank)
            assert share._rng.bit_generator.state == source._rng.bit_generator.state
            if len(share):
                assert {sample.transition_id for sample in share.sample(100)} <= set(range(len(share)))

    def test_the_oldest_of_all_leave_first(self):
        """Age is the number of transitions that came later in the same buffer."""
        sources, owners = deal_episodes([np.array([3, 1, 1]), np.array([2, 2])], world_size=2)
        assert sources.tolist() == [0, 1, 0, 0, 1]  # with 2, 2, 1, 0 and 0 transitions after them
        assert owners.tolist() == [0, 1, 1, 0, 1]

    def test_a_share_that_does_not_fit_is_an_error(self, tmp_path):
        folders = save_ranks(tmp_path, 2, seed=0)
        sizes = [episode_lengths(folder / "episodes.parquet").sum() for folder in folders]
        with pytest.raises(ValueError, match=f"this one would hold {sum(sizes)} .*`replay_buffer_size` is 100"):
            PrioritizedReplay(100).load_share(folders, 0, 1)
