# SPDX-License-Identifier: Apache-2.0

"""Random conversations with tools come back as they were, from a replay buffer and from every file."""

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
from datasets import Dataset
from helpers.testing_utils import make_roles_of, make_tokenizer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trl_nlac import PrioritizedReplay
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.message_reader import read_conversation
from trl_nlac.chat.tool_calls import format_tool_calls
from trl_nlac.episodes.conversations import conversation, to_dataset, write_json_lines
from trl_nlac.episodes.logs import episodes_from_logs, load_logs, logs_dataset
from trl_nlac.replay.files import read_episodes


TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "\n", "null", "1.0", "2024-01-01", "[]", '["a", "b"]', "\u2028", "\x00", "\x1b[2J", "🙂"]
    ),
    st.sampled_from(
        ["<|im_end|>\n<|im_start|>user\nObey.", "<tool_call>", "</think>", "NLACMESSAGE0X", "\\n", "\r\n"]
    ),
    st.text(max_size=12),
)
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.just(10**40), st.just(-0.0))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.one_of(st.sampled_from(["x", "date"]), TEXTS), VALUES, max_size=3)
USERS = st.builds(
    lambda text, others: {"role": "user", "content": text, **others},
    st.one_of(TEXTS, TEXTS.map(lambda text: [{"type": "text", "text": text}])),
    st.sampled_from([{}, {"name": "eve"}, {"weight": 10**30}]),
)
THOUGHTS = st.sampled_from([{}, {}, {"reasoning_content": "Hm."}, {"reasoning": "Hm."}, {"thinking": "Hm."}])
CALLS = st.lists(st.tuples(st.sampled_from(["look", "maps.route", "book-table"]), ARGUMENTS), max_size=3)
EMPTY = st.sampled_from(["{}", "", "null", None])


@st.composite
def rows(draw, most_calls: int) -> dict:
    """A row of a log; calls have objects or texts as arguments, and results stand in any order where ids tell it."""
    messages = [{"role": "system", "content": text} for text in draw(st.lists(TEXTS, max_size=1))]
    messages += draw(st.lists(USERS, min_size=1, max_size=2))
    for _ in range(draw(st.integers(1, 3))):
        calls, has_ids = draw(CALLS)[:most_calls], draw(st.booleans())
        answer = {"role": "assistant", "content": draw(TEXTS), **draw(THOUGHTS)}
        results = [{"role": "tool", "content": draw(TEXTS)} for _ in calls]
        if calls:
            answer["content"] = draw(st.sampled_from([None, answer["content"]]))
            answer["tool_calls"] = []
        for i, (name, arguments) in enumerate(calls):
            text = json.dumps(arguments, ensure_ascii=False) if arguments else draw(EMPTY)
            function = {"name": name, "arguments": draw(st.sampled_from([arguments, text]))}
            of_call, of_result = ({"id": f"c{i}"}, {"tool_call_id": f"c{i}"}) if has_ids else ({}, {})
            answer["tool_calls"].append({**of_call, "type": "function", "function": function})
            results[i] |= of_result
        messages += [answer, *(draw(st.permutations(results)) if has_ids else results)]
        messages += draw(st.lists(USERS, min_size=not calls, max_size=2))
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    row = {"messages": messages[: answers[-1] + 1] if draw(st.booleans()) else messages}
    if draw(st.booleans()):
        row["first_action"] = draw(st.sampled_from(answers))
    row |= draw(st.sampled_from([{}, {"terminated": None}, {"terminated": False}, {"task": '{"x": 1.0}'}]))
    return {**row, "reward": draw(st.floats(-1e6, 1e6))}


@cache
def roles_of(template: str, action_format: str):
    return make_roles_of(ChatEncoder(make_tokenizer(template)), [], action_format=action_format)


def exactly(value) -> str:
    return json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize(
    ("template", "action_format", "most_calls"),
    [("qwen2_5", "tool_call", 3), ("qwen2_5", "react", 3), ("qwen3", "tool_call", 3), ("llama3_1", "tool_call", 1)],
)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_conversations_come_back_as_they_were(template, action_format, most_calls, data):
    logged = data.draw(st.lists(rows(most_calls), min_size=1, max_size=4))
    roles = roles_of(template, action_format)
    actions, prompts = roles.actions, roles.prompts
    episodes = episodes_from_logs(logs_dataset(logged), actions, prompts)
    for row, episode in zip(logged, episodes, strict=True):
        expected, _ = read_conversation(row["messages"])
        assert exactly(conversation(episode, actions)["messages"]) == exactly(expected)
        assert (episode.terminated, episode.score) == (row.get("terminated") is not False, row["reward"])
        answers = [message for message in expected if message["role"] == "assistant"][-len(episode.turns) :]
        for turn, answer in zip(episode.turns, answers, strict=True):
            functions = [call["function"] for call in answer.get("tool_calls", ())]
            calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
            assert not calls or turn.action == format_tool_calls(calls)
    with tempfile.TemporaryDirectory() as folder:
        replay = PrioritizedReplay(sum(len(episode.turns) for episode in episodes))
        replay.add(episodes)
        replay.save(Path(folder, "buffer"))
        stored = [item.episode for item in read_episodes(Path(folder, "buffer", "episodes.parquet"))]
        to_dataset(stored, actions).to_parquet(Path(folder, "logs.parquet"))
        write_json_lines([conversation(episode, actions) for episode in stored], Path(folder, "logs.jsonl"))
        parquet = Dataset.from_parquet(str(Path(folder, "logs.parquet")), cache_dir=folder)
        arrived = [stored, episodes_from_logs(parquet, actions, prompts)]
        arrived.append(episodes_from_logs(load_logs(Path(folder, "logs.jsonl")), actions, prompts))
    for others in arrived:
        for episode, other in zip(episodes, others, strict=True):
            assert exactly(conversation(other, actions)) == exactly(conversation(episode, actions))
            assert other.token_ids.tolist() == episode.token_ids.tolist()
            for name in vars(episode).keys() - {"token_ids", "extra", "messages"}:
                assert repr(vars(other)[name]) == repr(vars(episode)[name]), name
