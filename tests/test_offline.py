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

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.testing_utils import DESK, TASKS, make_config, make_roles, make_roles_of, make_tokenizer, make_trainer
from transformers import AutoModelForCausalLM

from trl_nlac import NLACTrainer
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import COMPACT_PROMPTS, TINY_MODEL, make_environment
from trl_nlac.episodes.conversations import conversation, problem_of, record_conversation
from trl_nlac.episodes.logs import episodes_from_logs, offline_tasks, tools_of_logs
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
    def test_out_and_in_again(self, tmp_path, action_format):
        """Episodes that were played are the same after they were conversations in a dataset."""
        trainer = make_trainer(
            tmp_path,
            {"max_steps": 1, "max_turns": 2, "action_format": action_format, "max_completion_length": 48},
            environment_factory=lambda: make_environment(DESK, action_format),
        )
        trainer.train()
        dataset = trainer.replay.to_dataset(trainer.roles)
        if action_format == "tool_call":
            assert tools_of_logs(dataset) == trainer.environments.tool_schemas
            assert dataset[0]["messages"][1]["tool_calls"][0]["function"]["name"] == "route"
        again = episodes_from_logs(dataset, trainer.roles)
        for first, second in zip(trainer.replay.episodes, again, strict=True):
            np.testing.assert_array_equal(first.token_ids, second.token_ids)
            assert first.turns == second.turns and first.task == second.task
            assert (first.terminated, first.truncated) == (second.terminated, second.truncated)

    @pytest.mark.parametrize("action_format", ["text", "react", "tool_call"])
    def test_system_messages_examples_and_tools_stay(self, action_format):
        """A log with all of these in its opening is the same after it was read and told again."""
        opening = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "An example."}, USER]
        schema = {"type": "function", "function": {"name": "route", "parameters": {"properties": {}}}}
        action = called("route") if action_format == "tool_call" else said("Thought: so\nAction: route")
        answer = result() if action_format == "tool_call" else ANSWER
        rows = [{"messages": [*opening, action, answer], "reward": 0.5, "tools": json.dumps([schema])}]
        roles = make_roles([], action_format=action_format)
        (episode,) = episodes_from_logs(Dataset.from_list(rows), roles)
        assert episode.opening == tuple(opening) and episode.tools == (schema,)
        told = conversation(episode, roles)
        assert told["messages"][:3] == opening and json.loads(told["tools"]) == [schema]
        (again,) = episodes_from_logs(Dataset.from_list([told]), roles)
        np.testing.assert_array_equal(again.token_ids, episode.token_ids)
        assert again.opening == episode.opening

    def test_what_is_said_beside_calls_stays(self):
        """Where the template shows it, as that of Qwen."""
        roles = make_roles_of(ChatEncoder(make_tokenizer("qwen2_5")), [], action_format="tool_call")
        messages = [USER, {**called("look"), "content": "Let me see."}, result("a door"), called("go")]
        (episode,) = episodes_from_logs(Dataset.from_list([{"messages": messages, "reward": 1.0}]), roles)
        assert "Let me see.\n<tool_call>" in roles.chat.tokenizer.decode(Transition(episode, 0).action_ids)
        told = conversation(episode, roles)
        assert [message["content"] for message in told["messages"]] == ["situ 2", "Let me see.", "a door", ""]
        (again,) = episodes_from_logs(Dataset.from_list([told]), roles)
        np.testing.assert_array_equal(again.token_ids, episode.token_ids)

    def test_calls_of_openai(self):
        """Arguments in JSON, a thought as content, several results, contents in parts."""
        messages = [
            {"role": "user", "content": [{"type": "text", "text": "situ "}, {"type": "text", "text": "2"}]},
            {**called("look", "wait", arguments='{"at": "door"}'), "content": "First  look."},
            result("a door"),
            result("nothing"),
            said("Thought: Enough.\nAction: go"),
        ]
        assert problem_of(messages) is None
        told = record_conversation(messages, make_roles([], action_format="react"))
        calls = [{"name": name, "arguments": {"at": "door"}} for name in ("look", "wait")]
        assert [turn.action for turn in told.turns] == [json.dumps(calls), "go"]
        assert told.turns[0].next_observation == '["a door", "nothing"]'
        assert told.opening == [{"role": "user", "content": "situ 2"}]
        roles = make_roles([], action_format="react")
        first = told.turns[0]
        text = roles.chat.decode(told.token_ids[first.prompt_end : first.prompt_end + first.action_length])
        assert text == f"Thought: First look.\nAction: {json.dumps(calls)}"

    @pytest.mark.parametrize(
        ("messages", "problem"),
        [
            (None, "no list of messages"),
            ([{"content": "a"}], "no list of messages"),
            ([], "does not begin with a user's message"),
            ([said("go")], "does not begin with a user's message"),
            ([USER, {"role": "system", "content": "a"}, said("go")], "does not begin with a user's message"),
            ([USER, {"role": "function", "content": "a"}], "the role 'function' is none of"),
            ([USER, said("go"), said("stay")], "messages 1 and 2 are both the assistant's"),
            ([USER, {"role": "assistant", "content": None}], "the content of message 1 is not text"),
            ([{"role": "user", "content": [{"type": "image"}]}, said("go")], "the content of message 0 is not text"),
            ([USER, called("look", arguments="{door}")], "message 1 has a tool call without a name or with arguments"),
            ([USER, called("look", arguments='["door"]')], "message 1 has a tool call without a name or with"),
            ([USER, said("go"), result()], "message 2 is the result of a tool that nothing called"),
            ([USER, called("look", "wait"), result(), said("go")], "before message 3, 1 tool calls have no result"),
            ([USER, called("look"), ANSWER, said("go")], "before message 2, 1 tool calls have no result"),
            ([USER, called("look", "wait"), result()], "at its end, 1 tool calls have no result"),
        ],
    )
    def test_problems(self, messages, problem):
        assert problem in problem_of(messages)

    def test_what_is_no_problem(self):
        system = {"role": "system", "content": "Be brief."}
        for messages in (
            [USER],
            [system, USER, USER, said("go")],
            [USER, said("go"), ANSWER, ANSWER, said("stay")],
            [USER, called("look"), result(), said("go"), ANSWER],
            [USER, called("look", "wait")],  # with which the task ended
        ):
            assert problem_of(messages) is None, messages

    def test_shares_of_processes(self):
        rows = [{"messages": [USER, said(f"go {i}")], "reward": float(i)} for i in range(5)]
        rows[3]["reward"] = float("inf")
        dataset = Dataset.from_list(rows)
        assert [e.score for e in episodes_from_logs(dataset, make_roles([]), 0, 2)] == [0.0, 2.0, 4.0]
        with pytest.raises(ValueError, match="1 of 2 rows .* are malformed. The first ones: row 3: the reward is inf"):
            episodes_from_logs(dataset, make_roles([]), 1, 2)


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Dataset:
    """What the base policy did."""
    trainer = make_trainer(tmp_path_factory.mktemp("logs"), {"max_steps": 4, "max_turns": 2, "learning_rate": 0.0})
    trainer.train()
    return trainer.replay.to_dataset(trainer.roles)


class TestOfflineTraining:
    def test_without_an_environment(self, tmp_path, logs):
        """It trains on the logs alone, and what it learned can be played."""
        trainer = make_trainer(
            tmp_path,
            {"max_steps": -1, "num_train_epochs": 2, "logging_steps": 1, "log_completions": True, "audit_samples": 1},
            replay_dataset=logs,
            train_dataset=None,
            environment_factory=None,
        )
        before = trainer.model.lm_head.weight.detach().clone()
        trainer.train()
        trainer.save_model()
        history = [log for log in trainer.state.log_history if "loss" in log]
        assert len(history) == 2 * len(logs) // 4  # episodes_per_iteration of an iteration's single step
        assert all(log["critic/loss"] > 0 and log["environment/steps"] == 0 for log in history)
        assert "episode/return" not in history[0] and len(trainer.replay) == 2 * len(logs)
        assert not torch.equal(before, trainer.model.lm_head.weight)
        assert not (tmp_path / "completions").exists() and (tmp_path / "_audit").exists()
        trainer.create_model_card()
        assert "| environment | none |" in (tmp_path / "README.md").read_text()
        with pytest.raises(ValueError, match="Evaluation plays, and there is no `environment_factory`"):
            trainer.evaluate(TASKS)
        AutoModelForCausalLM.from_pretrained(tmp_path)

    def test_logs_before_playing(self, tmp_path, logs):
        trainer = make_trainer(tmp_path, {"max_steps": 1, "max_turns": 2}, replay_dataset=logs)
        assert all(episode.is_log for episode in trainer.replay.episodes)
        trainer.train()
        assert [episode.is_log for episode in trainer.replay.episodes] == [True] * len(logs) + [False] * 4

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"replay_dataset": None}, "There is nothing to learn from: give an `environment_factory`"),
            ({"train_dataset": TASKS}, "`train_dataset` is for playing, and there is no `environment_factory`"),
            ({"reward_funcs": lambda **kwargs: []}, "`reward_funcs` is for playing"),
            ({"args": {"replay_buffer_size": 5}}, "has 32 transitions for this process, `replay_buffer_size` is 5"),
        ],
    )
    def test_what_does_not_fit(self, tmp_path, logs, arguments, message):
        args = make_config(tmp_path, **arguments.pop("args", {}))
        with pytest.raises(ValueError, match=message):
            NLACTrainer(
                **{"model": TINY_MODEL, "args": args, "prompts": COMPACT_PROMPTS, "replay_dataset": logs, **arguments}
            )


def test_every_process_needs_a_row(logs):
    with pytest.raises(ValueError, match="`replay_dataset` has 3 rows for 4 processes"):
        offline_tasks(logs.select(range(3)), None, None, world_size=4)
    assert len(offline_tasks(logs.select(range(4)), None, None, world_size=4)) == 4


def test_a_conversation_has_what_ended_it(logs):
    assert [message["role"] for message in logs[0]["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert logs[0]["messages"][-1]["content"].endswith(" lose") and logs[0]["terminated"]
    roles = make_roles([])
    (episode,) = episodes_from_logs(logs.select([0]), roles)
    assert conversation(episode, roles) == logs[0]
