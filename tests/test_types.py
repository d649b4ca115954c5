# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import numpy as np
import pytest
from helpers.testing_utils import make_episode

from trl_nlac.types import Prompt, TrainingExample, Transition


TOOL = {"type": "function", "function": {"name": "route", "parameters": {"properties": {}}}}


class TestPrompt:
    def test_extended(self):
        prompt = Transition(make_episode(num_turns=3), 1).state
        longer = prompt.extended([7]).extended([8, 9])
        assert longer.ids == [*prompt.ids, 7, 8, 9] and longer.trunk is prompt.trunk
        assert (longer.num_tokens, longer.last_id) == (prompt.num_tokens + 3, 9)
        assert prompt.last_id == prompt.ids[-1] and prompt.num_tokens == len(prompt.ids)

    def test_one_that_starts_within_the_trunk(self):
        prompt = Prompt(np.arange(8), 6, (9,), trunk_start=2)
        assert prompt.ids == [2, 3, 4, 5, 9] and prompt.num_tokens == 5

    @pytest.mark.parametrize("part", ["state", "state_action"])
    def test_tools_are_those_of_the_episode(self, part):
        transition = Transition(replace(make_episode(), tools=(TOOL,)), 1)
        prompt = getattr(transition, part)
        assert prompt.tools == prompt.extended([7]).tools == (TOOL,)
        assert Prompt.of([1, 2], tools=(TOOL,)).extended([3]).tools == (TOOL,)
        assert Prompt.of([1, 2]).tools == Transition(make_episode(), 0).state.tools == ()


def test_transitions_of_an_episode():
    episode = replace(make_episode(num_turns=3), segments=(make_episode(num_turns=1),))
    assert episode.transitions == [Transition(episode, i) for i in range(3)]
    assert [transition.is_last for transition in episode.transitions] == [False, False, True]


def test_number_of_tokens_of_an_example():
    example = TrainingExample("policy", Prompt.of([1, 2]).extended([3]), (4, 5))
    assert example.num_tokens == len(example.prompt.ids) + len(example.completion_ids) == 5
