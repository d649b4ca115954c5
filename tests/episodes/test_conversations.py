# SPDX-License-Identifier: Apache-2.0

import json

import numpy as np
import pytest
from helpers.testing_utils import DESK, make_roles, make_trained

from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.conversations import conversation, record_conversation, to_dataset
from trl_nlac.episodes.logs import episodes_from_logs
from trl_nlac.episodes.recorder import Recorder


USER = {"role": "user", "content": "situ 2"}
ANSWER = {"role": "user", "content": "refused needs claims 1"}


def said(text: str) -> dict:
    return {"role": "assistant", "content": text}


class TestConversations:
    @pytest.mark.parametrize("action_format", ["text", "react", "tool_call"])
    def test_round_trip(self, tmp_path, action_format):
        trainer = make_trained(
            tmp_path,
            {"max_steps": 1, "max_turns": 2, "action_format": action_format, "max_completion_length": 48},
            environment_factory=lambda: make_environment(DESK, action_format),
        )
        dataset = to_dataset(trainer.replay.episodes, trainer.roles.actions)
        if action_format == "tool_call":
            assert json.loads(dataset[0]["tools"]) == trainer.environments.tool_schemas
            assert dataset[0]["messages"][1]["tool_calls"][0]["function"]["name"] == "route"
        again = episodes_from_logs(dataset, trainer.roles.actions, trainer.roles.prompts)
        for first, second in zip(trainer.replay.episodes, again, strict=True):
            np.testing.assert_array_equal(first.token_ids, second.token_ids)
            assert first.turns == second.turns and first.task == second.task
            assert (first.terminated, first.truncated) == (second.terminated, second.truncated)

    def test_an_end_that_shows_nothing_is_no_message(self):
        """An answer that ends the task is the last message, as that of a user would be empty."""
        roles = make_roles([])
        recorder = Recorder(roles.actions, roles.prompts, {})
        recorder.begin([USER])
        recorder.act("go", "go", roles.actions.completion("go", ""), StepResult("", 1.0, terminated=True))
        assert conversation(recorder.episode(), roles.actions)["messages"] == [USER, said("go")]

    def test_calls_in_words_are_read_where_there_are_tools(self):
        function = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
        messages = [USER, said('Thought: Hm.\nAction: look(at="door").'), ANSWER, said("Thought: So.\nAction: go")]
        roles = make_roles([], action_format="react")
        for tools, action in (([{"type": "function", "function": function}], "{"), ([], "look(")):
            recorded = record_conversation(messages, roles.actions, roles.prompts, tools)
            assert recorded.turns[0].action.startswith(action) and recorded.turns[1].action == "go"
            episode = recorded.episode()
            assert conversation(episode, roles.actions)["messages"][1] == messages[1]
