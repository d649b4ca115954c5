# SPDX-License-Identifier: Apache-2.0

import json

import numpy as np
import pytest
from datasets import Dataset
from helpers.testing_utils import DESK, make_logs, make_roles, make_roles_of, make_tokenizer, make_trained

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.message_reader import read_conversation
from trl_nlac.chat.tool_calls import format_results, format_tool_calls, with_text
from trl_nlac.environments import StepResult
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.conversations import conversation, record_conversation, to_dataset
from trl_nlac.episodes.logs import episodes_from_logs, logs_dataset
from trl_nlac.episodes.recorder import Recorder
from trl_nlac.types import Transition


USER = {"role": "user", "content": "situ 2"}
ANSWER = {"role": "user", "content": "refused needs claims 1"}


def said(text: str) -> dict:
    return {"role": "assistant", "content": text}


def called(*names: str, arguments="{}") -> dict:
    functions = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": functions}


def result(content="done") -> dict:
    return {"role": "tool", "content": content}


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

    @pytest.mark.parametrize("action_format", ["text", "react", "tool_call"])
    def test_system_messages_examples_and_tools_stay(self, action_format):
        opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "An example."}, USER]
        schema = {"type": "function", "function": {"name": "route", "parameters": {"properties": {}}}}
        action = called("route") if action_format == "tool_call" else said("Thought: so\nAction: route")
        answer = result() if action_format == "tool_call" else ANSWER
        rows = [{"messages": [*opening, action, answer], "reward": 0.5, "tools": json.dumps([schema])}]
        roles = make_roles([], action_format=action_format)
        (episode,) = episodes_from_logs(Dataset.from_list(rows), roles.actions, roles.prompts)
        assert episode.opening == tuple(opening) and episode.tools == (schema,)
        recorded = conversation(episode, roles.actions)
        assert recorded["messages"][:3] == opening and json.loads(recorded["tools"]) == [schema]
        (again,) = episodes_from_logs(Dataset.from_list([recorded]), roles.actions, roles.prompts)
        np.testing.assert_array_equal(again.token_ids, episode.token_ids)
        assert again.opening == episode.opening

    def test_text_next_to_calls_stays(self):
        roles = make_roles_of(ChatEncoder(make_tokenizer("qwen2_5")), [], action_format="tool_call")
        messages = [USER, {**called("look"), "content": "Let me see."}, result("a door"), called("go")]
        (episode,) = episodes_from_logs(
            logs_dataset([{"messages": messages, "reward": 1.0}]), roles.actions, roles.prompts
        )
        assert "Let me see.\n<tool_call>" in roles.chat.tokenizer.decode(Transition(episode, 0).action_ids)
        recorded = conversation(episode, roles.actions)
        assert recorded["messages"] == read_conversation(messages)[0]
        (again,) = episodes_from_logs(Dataset.from_list([recorded]), roles.actions, roles.prompts)
        np.testing.assert_array_equal(again.token_ids, episode.token_ids)

    @pytest.mark.parametrize("action_format", ["text", "tool_call"])
    def test_examples_of_the_assistant_stay_examples(self, action_format):
        """An environment can open with a conversation; what the assistant says there is no action, also in a log."""
        chat = ChatEncoder(make_tokenizer("qwen2_5"))
        roles = make_roles_of(chat, [], action_format=action_format)
        example = [USER, said("go")] if action_format == "text" else [USER, called("look") | {"content": ""}, result()]
        recorder = Recorder(roles.actions, roles.prompts, {"n": 1})
        recorder.begin([*example, {"role": "user", "content": "baku 2"}])
        recorder.act("stay", "stay", roles.actions.completion("stay", ""), StepResult("won", 1.0, terminated=True))
        episode = recorder.episode()
        dataset = to_dataset([episode], roles.actions)
        assert dataset["first_action"][0] == len(example) + 1
        (again,) = episodes_from_logs(dataset, roles.actions, roles.prompts)
        np.testing.assert_array_equal(again.token_ids, episode.token_ids)
        assert len(again.turns) == 1 and again.turns[0].action == "stay"

    def test_an_end_that_shows_nothing_is_no_message(self):
        """An answer that ends the task is the last message, as that of a user would be empty."""
        roles = make_roles([])
        recorder = Recorder(roles.actions, roles.prompts, {})
        recorder.begin([USER])
        recorder.act("go", "go", roles.actions.completion("go", ""), StepResult("", 1.0, terminated=True))
        assert conversation(recorder.episode(), roles.actions)["messages"] == [USER, said("go")]

    @pytest.mark.parametrize("names", [["look"], ["look", "wait"]])
    def test_the_words_of_a_user_after_results_stay_the_users(self, names):
        roles = make_roles_of(ChatEncoder(make_tokenizer("qwen2_5")), [], action_format="tool_call")
        action = format_tool_calls([(name, {}) for name in names])
        results = format_results([f"r{i}" for i in range(len(names))])
        recorder = Recorder(roles.actions, roles.prompts, {})
        recorder.begin([USER])
        for result in (StepResult(results, words="hurry"), StepResult("won", terminated=True)):
            recorder.act(action, action, roles.actions.completion(action, ""), result)
            if not recorder.done:
                recorder.show_observation()
        episode = recorder.episode()
        row = conversation(episode, roles.actions)
        assert row["messages"][1:] == [with_text(message) for message in recorder.completion_messages]
        assert row["messages"][2 + len(names)] == {"role": "user", "content": "hurry"}
        (again,) = episodes_from_logs(Dataset.from_list([row]), roles.actions, roles.prompts)
        np.testing.assert_array_equal(again.token_ids, episode.token_ids)
        assert again.turns[0] == episode.turns[0]

    def test_calls_of_openai(self):
        messages = [
            {"role": "user", "content": [{"type": "text", "text": "situ"}, {"type": "text", "text": "2"}]},
            {**called("look", "wait", arguments='{"at": "door"}'), "content": "First  look."},
            result("a door"),
            result("nothing"),
            said("Thought: Enough.\nAction: go"),
        ]
        messages, _ = read_conversation(messages)
        roles = make_roles([], action_format="react")
        recorded = record_conversation(messages, roles.actions, roles.prompts)
        calls = [{"name": name, "arguments": {"at": "door"}} for name in ("look", "wait")]
        assert [turn.action for turn in recorded.turns] == [json.dumps(calls), "go"]
        assert recorded.turns[0].next_observation == '["a door", "nothing"]'
        assert recorded.opening == [{"role": "user", "content": "situ\n2"}]
        first = recorded.turns[0]
        text = roles.chat.decode(recorded.token_ids[first.prompt_end : first.prompt_end + first.action_length])
        assert text == f"Thought: First look.\nAction: {json.dumps(calls)}"

    def test_calls_in_words_are_read_where_there_are_tools(self):
        function = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
        messages = [USER, said('Thought: Hm.\nAction: look(at="door").'), ANSWER, said("Thought: So.\nAction: go")]
        roles = make_roles([], action_format="react")
        for tools, action in (([{"type": "function", "function": function}], "{"), ([], "look(")):
            recorded = record_conversation(messages, roles.actions, roles.prompts, tools)
            assert recorded.turns[0].action.startswith(action) and recorded.turns[1].action == "go"
            episode = recorded.episode()
            assert conversation(episode, roles.actions)["messages"][1] == messages[1]


def test_a_conversation_has_what_ended_it(tmp_path):
    logs = make_logs(tmp_path)
    assert [message["role"] for message in logs[0]["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert logs[0]["messages"][-1]["content"].endswith(" lose") and logs[0]["terminated"]
    roles = make_roles([])
    (episode,) = episodes_from_logs(logs.select([0]), roles.actions, roles.prompts)
    assert conversation(episode, roles.actions) == logs[0]
