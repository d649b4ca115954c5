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

import pytest
from helpers.method_utils import DESK
from helpers.testing_utils import make_roles

from trl_nlac.environments.embedded import make_environment
from trl_nlac.environments.pool import EnvironmentPool
from trl_nlac.episodes.rewards import EpisodeRewards
from trl_nlac.episodes.rollout import play_episodes


class TestEpisodeRewards:
    def test_reward_functions(self):
        seen = {}

        async def length(completions, request, **kwargs):
            seen.update(kwargs, completions=completions, request=request)
            return [len(messages) / 2 for messages in completions]

        def nothing(prompts, **kwargs):
            return [None] * len(prompts)

        roles = make_roles(["route legal ruby photo noon", "route billing amber photo noon"], max_turns=5)
        (episode,) = play_episodes(
            EnvironmentPool(lambda: make_environment(DESK)),
            [{"request": "baku"}],
            roles,
            rewards=EpisodeRewards([length, nothing], [0.5, 1.0]),
        )
        assert episode.score == 1 + 0.5 * 2
        assert seen["request"] == ["baku"]
        assert seen["completions"][0][0] == {"role": "assistant", "content": "route legal ruby photo noon"}
        assert roles.chat.decode(seen["completion_ids"][0]).count("route") == 2

    def test_reward_function_errors(self):
        with pytest.raises(ValueError, match="`reward_weights` has 2 entries for 1"):
            EpisodeRewards([len], [1.0, 2.0])
        rewards = EpisodeRewards([lambda **kwargs: [1.0]])
        with pytest.raises(ValueError, match="returned 1 rewards for 2 episodes"):
            rewards([[], []], [[], []], [[], []], [None, None], [{}, {}])
