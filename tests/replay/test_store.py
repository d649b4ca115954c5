# SPDX-License-Identifier: Apache-2.0

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.replay_utils import assert_same_episode, make_text_episode
from helpers.testing_utils import make_episode

from trl_nlac import PrioritizedReplay
from trl_nlac.replay import store
from trl_nlac.replay.files import StoredEpisode, read_episodes, write_episodes
from trl_nlac.replay.store import EpisodeStore, decode_episode, encode_episode
from trl_nlac.types import Episode, Turn


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
        targets = [None, '{"version": 3}'][: len(episode.turns)]
        write_episodes(tmp_path / "episodes.parquet", [StoredEpisode(episode, priorities, targets)])
        (read,) = read_episodes(tmp_path / "episodes.parquet")
        assert_same_episode(episode, read.episode)
        assert read.priorities.tolist() == priorities.tolist() and read.targets == targets


SPILL_SCRIPT = """
import ctypes
import re
import sys
from pathlib import Path

import numpy as np
from helpers.replay_utils import make_text_episode

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


used(None, 10)  # allocates what is allocated only once
print(used(2**24, 1100), used(None, 1100))
"""


class TestSpill:
    @pytest.fixture(autouse=True)
    def small_files(self, monkeypatch):
        monkeypatch.setattr(store, "MAX_FILE_SIZE", 10_000)

    @pytest.mark.parametrize("limit", [0, 5_000, 40_000])
    def test_content_is_the_same(self, tmp_path, limit):
        """Adding, evicting, sampling, updating and saving work as without a limit; memory and disk usage are right."""
        rng = np.random.default_rng(0)
        folder = tmp_path / "made" / "when needed"
        replays = [
            PrioritizedReplay(100, seed=5, memory_limit=memory, spill_directory=folder) for memory in (None, limit)
        ]
        for step in range(40):
            added = [make_text_episode(rng, int(rng.integers(1, 6)), int(rng.integers(20, 900))) for _ in range(5)]
            if step % 10 == 3:  # more than fits into one file
                added.append(make_text_episode(rng, 3, 5_000))
            for replay in replays:
                replay.add(added)
            del added
            samples = [replay.sample(30) for replay in replays]
            for ours, theirs in zip(*samples, strict=True):
                assert ours.transition_id == theirs.transition_id
                assert_same_episode(ours.transition.episode, theirs.transition.episode)
            priorities = rng.exponential(size=30)
            for replay in replays:
                replay.update_priorities([sample.transition_id for sample in samples[0]], priorities)
            del samples, ours, theirs
            whole, spilled = (replay._store for replay in replays)  # a buffer does not show where its episodes are
            records = sum(len(encode_episode(episode)) for episode in replays[0].episodes)
            assert spilled.memory_size <= limit and spilled.memory_size + spilled.disk_size == records
            assert (whole.memory_size, whole.disk_size) == (records, 0)
            assert not any(folder.iterdir()) if folder.exists() else not spilled.disk_size  # the files have no names
        for ours, theirs in zip(*(replay.episodes for replay in replays), strict=True):
            assert_same_episode(ours, theirs)
        for name, replay in zip(("whole", "spilled"), replays, strict=True):
            replay.save(tmp_path / name)
        saved = [pq.read_table(tmp_path / name / "episodes.parquet") for name in ("whole", "spilled")]
        assert saved[0].equals(saved[1])

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_disk_space_is_given_back(self, tmp_path):
        """Files without episodes are closed, which deletes them."""

        def num_open() -> int:
            targets = []
            for link in os.listdir("/proc/self/fd"):
                with suppress(FileNotFoundError):  # the directory itself was open
                    targets.append(os.readlink(f"/proc/self/fd/{link}"))
            return sum(target.startswith(str(tmp_path)) for target in targets)

        rng = np.random.default_rng(0)
        episodes, written = EpisodeStore(memory_limit=0, directory=tmp_path), 0
        for i in range(100):
            episode = make_text_episode(rng)
            episodes.append(i, episode)
            written += len(encode_episode(episode))
            if len(episodes) > 10:
                episodes.pop_oldest()
            assert 1 <= num_open() <= 3
        assert written > 10 * 10_000 and episodes.disk_size < 3 * 10_000
        episodes.clear()
        assert num_open() == 0 == episodes.disk_size

    def test_loading_keeps_to_the_limit(self, tmp_path):
        rng = np.random.default_rng(0)
        replay = PrioritizedReplay(100)
        replay.add([make_text_episode(rng) for _ in range(30)])
        replay.save(tmp_path)
        loaded = PrioritizedReplay(100, memory_limit=20_000)
        loaded.load(tmp_path)
        stored = loaded._store  # a buffer does not show where its episodes are
        assert 0 < stored.memory_size <= 20_000 < stored.disk_size
        for ours, theirs in zip(replay.episodes, loaded.episodes, strict=True):
            assert_same_episode(ours, theirs)

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_resident_memory(self, tmp_path):
        """96 MB of incompressible records: with a limit of 16 MiB, memory grows by at most 8 MiB more."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        command = [sys.executable, "-c", SPILL_SCRIPT, str(tmp_path)]
        finished = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert finished.returncode == 0, finished.stderr
        spilled, whole = map(int, finished.stdout.split())
        assert spilled <= 24 * 2**20 and whole >= 90 * 2**20, (spilled, whole)
        assert not any(tmp_path.iterdir())
