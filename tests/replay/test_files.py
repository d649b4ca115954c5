# SPDX-License-Identifier: Apache-2.0

import tracemalloc
from collections.abc import Callable

import numpy as np
import pyarrow.parquet as pq
from helpers.replay_utils import assert_same_episode, make_text_episode
from helpers.testing_utils import make_episode

from trl_nlac import PrioritizedReplay
from trl_nlac.replay import files


def overhead(function: Callable[[], None]) -> int:
    """Return the memory in bytes that Python and numpy needed during a call, beyond what they keep."""
    tracemalloc.start()
    function()
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most - kept


class TestFiles:
    def test_saving_and_loading_stream(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "ROW_GROUP_TOKENS", 20_000)
        rng = np.random.default_rng(0)
        replay = PrioritizedReplay(capacity=3000)
        replay.add(make_text_episode(rng, num_tokens=2000) for _ in range(500))
        decoded = 500 * 4 * 2000  # bytes
        assert overhead(lambda: replay.save(tmp_path)) < decoded / 4
        with pq.ParquetFile(tmp_path / "episodes.parquet") as file:
            assert file.num_row_groups >= 50
            assert max(file.metadata.row_group(i).num_rows for i in range(50)) == 10
        loaded = PrioritizedReplay(capacity=3000)
        assert overhead(lambda: loaded.load(tmp_path)) < decoded / 4
        assert len(loaded) == 1500
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
