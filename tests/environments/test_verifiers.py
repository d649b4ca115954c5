# SPDX-License-Identifier: Apache-2.0

"""With the real package in a Python of its own, which the variable VERIFIERS_PYTHON names: see examples/agents."""

import os
from pathlib import Path

import pytest
from helpers.testing_utils import make_roles, play

from trl_nlac.environments import AgentEnvironment


PYTHON = os.environ.get("VERIFIERS_PYTHON")
AGENT = Path(__file__).parents[2] / "examples" / "agents" / "verifiers_agent.py"


@pytest.mark.skipif(PYTHON is None, reason="needs VERIFIERS_PYTHON, a Python with verifiers")
@pytest.mark.parametrize(("answer", "reward"), [("It is 9.", 1.0), ("It is 8.", 0.0)])
def test_a_rollout_is_an_episode(answer, reward):
    task = {"question": "What is the square of 3?", "answer": 9}
    [episode] = play([task], AgentEnvironment([PYTHON, str(AGENT)]), make_roles(answer, max_turns=2), timeout=120)
    assert episode.failure is None and episode.score == reward and episode.terminated
    assert episode.first_observation == task["question"] and [turn.action for turn in episode.turns] == [answer]
