# SPDX-License-Identifier: Apache-2.0

import numpy as np
from helpers.testing_utils import OPENING

from trl_nlac.types import Answer, Critique, Episode, Transition, Turn


def make_text_episode(rng, num_turns: int = 3, num_tokens: int = 400) -> Episode:
    token_ids = rng.integers(2**31, size=num_tokens, dtype=np.int32)
    turns = tuple(Turn(4 * i + 2, 2, f"act {i}", f"seen {i}", 0.0) for i in range(num_turns))
    return Episode({"name": str(rng.integers(2**31))}, OPENING, token_ids, turns, True, False)


def make_target(transition: Transition, future: str = "it works") -> Answer:
    text = f"Future: {future}\nOptimality: Yes"
    critique = Critique(future, True, verdict_span=(len(text) - 3, len(text)))
    return Answer(transition.state_action.extended([7, 8]), (9, 10, 11), text, critique)


def assert_same_episode(ours: Episode, theirs: Episode) -> None:
    for name, value in vars(ours).items():
        if name != "token_ids":
            assert vars(theirs)[name] == value, name
    np.testing.assert_array_equal(ours.token_ids, theirs.token_ids)
    assert theirs.token_ids.dtype == np.int32
