# SPDX-License-Identifier: Apache-2.0

"""A model that repeats itself, as weak ones do, costs every reader of its text linear time."""

import time

import pytest

from trl_nlac import prompts
from trl_nlac.agent.judge import parse_score
from trl_nlac.chat import actions
from trl_nlac.chat.call_reader import read_calls, without_observation
from trl_nlac.secrets import hide_in_observation, hide_in_text
from trl_nlac.terminal import printable


TOOL = {"type": "object", "properties": {"team": {"type": "string"}}}
READERS = (
    *(prompts.parse_critique, prompts.parse_correctness, prompts.parse_future, prompts.parse_corrected_think),
    *(actions.parse_text, actions.parse_react, actions.parse_plain, actions.react_thought),
    *(parse_score, hide_in_text, hide_in_observation, printable, without_observation),
    lambda text: read_calls(text, [{"type": "function", "function": {"name": "route", "parameters": TOOL}}]),
)
BEGINNINGS = ("", "Future: a\nOptimality: ", "Correctness: ", "Thought: a\nAction: ", "<tool_call>", '{"a": "')
REPEATED = (
    *("\n", " ", "a", "A", "1", "-", "_", "*", "`", "#", "<", "[", "{", '{"', "(", '"', "'", "\\", "=", ":", "/", "."),
    *("a ", "a.", "A_", "\n ", "\n-", "\nNote", "```json\n", "Action: ", "\nAction:", "Thought: ", "<think>"),
    *("<corrected_think>", "Yes", "Yes. ", "no ", "\nFuture: a", "\nOptimality:", "Score", "Score:", "a://"),
    *("-----BEGIN PRIVATE KEY-----", "key=", "sk-", "Bearer ", "route(", "route(team=", "Action Input:", "[{"),
    *('{"name": "route", "arguments": {', "<function=route>", "<parameter=team>", "so that ", "would have "),
)


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_linear_time(beginning):
    for repeated in REPEATED:
        text = beginning + repeated * (20_000 // len(repeated)) + "x"
        for number, reader in enumerate(READERS):
            start = time.process_time()
            reader(text)
            assert time.process_time() - start < 1, (number, repeated)
