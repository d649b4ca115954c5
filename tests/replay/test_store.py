# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from helpers.replay_utils import assert_same_episode
from helpers.testing_utils import make_episode

from trl_nlac.replay.files import StoredEpisode, read_episodes, write_episodes
from trl_nlac.replay.store import decode_episode, encode_episode
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
