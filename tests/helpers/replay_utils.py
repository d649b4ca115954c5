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

"""Episodes for tests of the replay buffer."""

import numpy as np
from helpers.testing_utils import OPENING

from trl_nlac.types import Answer, Critique, Episode, Transition, Turn


def make_text_episode(rng, num_turns: int = 3, num_tokens: int = 400) -> Episode:
    """Make an episode whose token ids cannot be compressed."""
    token_ids = rng.integers(2**31, size=num_tokens, dtype=np.int32)
    turns = tuple(Turn(4 * i + 2, 2, f"act {i}", f"seen {i}", 0.0) for i in range(num_turns))
    return Episode({"name": str(rng.integers(2**31))}, OPENING, token_ids, turns, True, False)


def make_target(transition: Transition, future: str = "it works") -> Answer:
    """Make a Bellman target of a transition."""
    text = f"Future: {future}\nOptimality: Yes"
    critique = Critique(future, True, verdict_span=(len(text) - 3, len(text)))
    return Answer(transition.state_action.extended([7, 8]), (9, 10, 11), text, critique)


def assert_same_episode(ours: Episode, theirs: Episode) -> None:
    for name, value in vars(ours).items():
        if name != "token_ids":
            assert vars(theirs)[name] == value, name
    np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
    assert theirs.token_ids.dtype == np.int32
