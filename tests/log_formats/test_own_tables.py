# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.log_samples import ASKED, SAID, SEEN
from helpers.testing_utils import DESK, make_roles, play

from trl_nlac import PrioritizedReplay
from trl_nlac.chat.message_reader import read_conversation
from trl_nlac.environments.embedded import make_environment
from trl_nlac.episodes.conversations import to_dataset
from trl_nlac.log_formats.log_files import read_logs
from trl_nlac.records.episode_tables import EPISODE


@pytest.fixture(scope="module")
def roles():
    return make_roles("route parcels", max_turns=2)


@pytest.fixture(scope="module")
def episodes(roles):
    return play([{"request": request} for request in DESK.requests[:3]], lambda: make_environment(DESK), roles)


def conversations(found) -> list[list[tuple[str, str]]]:
    return [[(message["role"], message["content"]) for message in row["messages"]] for row in found.rows]


def expected(episodes) -> list[list[tuple[str, str]]]:
    said = []
    for episode in episodes:
        messages = [(message["role"], message["content"]) for message in episode.opening]
        for turn in episode.turns:
            messages += [("assistant", "route parcels"), ("user", turn.next_observation)]
        said.append(messages)
    return said


def test_a_buffer(tmp_path, episodes, roles):
    replay = PrioritizedReplay(100)
    replay.add([*episodes, replace(episodes[1], failure="step: it broke")])
    replay.save(tmp_path)
    found = read_logs([tmp_path], lambda path: roles.actions)
    assert found.format == "replay buffer of trl_nlac"
    assert found.unreadable == {"its environment failed, so that its return is no outcome": 1}
    assert conversations(found) == expected(episodes)
    assert [row["reward"] for row in found.rows] == [episode.score for episode in episodes]
    assert [row["terminated"] for row in found.rows] == [episode.terminated for episode in episodes]


def test_exported_conversations(tmp_path, episodes, roles):
    to_dataset(episodes, roles.actions).to_parquet(tmp_path / "logs.parquet")
    found = read_logs([tmp_path / "logs.parquet"], lambda path: roles.actions)
    assert found.format == "exported conversations" and conversations(found) == expected(episodes)
    assert [row["task"] for row in found.rows] == [episode.task for episode in episodes]


def test_absent_keys_of_structures_stay_absent(tmp_path):
    """Arrow gives every structure the keys of all."""

    def row(arguments: dict, properties: dict) -> dict:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
        messages = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, SEEN, SAID]
        return {"messages": messages, "reward": 1.0, "tools": [tool]}

    rows = [row({"x": 1}, {"city": {"type": "string"}}), row({"y": "s"}, {"date": {"type": "string", "format": "d"}})]
    rows.append({**row({}, {}), "messages": [*ASKED, SAID], "tools": []})
    labels = pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64()))  # of no type of `datasets`
    pq.write_table(pa.Table.from_pylist(rows).append_column("labels", labels), tmp_path / "x.parquet")
    found = read_logs([tmp_path / "x.parquet"], lambda path: None)
    assert [read["tools"] for read in found.rows] == [row["tools"] for row in rows]
    assert [read["messages"] for read in found.rows] == [read_conversation(row["messages"])[0] for row in rows]
    note = "nulls in tool calls or `tools` are taken for absent keys: Arrow fills structures so"
    assert found.notes == {note: 2} and not found.unreadable


def test_tables_of_a_run(tmp_path):
    turns = [{"text": "Thought: x\nAction: ask", "action": "ask", "next_observation": "Yes?", "reward": 0.0}]
    ending = [{"text": "Action: close", "action": "close", "next_observation": "", "reward": 1.0}]
    rows = [
        {"prompt": "Begin.", "turns": turns + ending, "return": 1.0, "terminated": True, "task": '{"request": "a"}'},
        {"prompt": "Begin.", "turns": turns, "return": 0.0, "terminated": False},
        {"prompt": "Begin.", "turns": turns, "return": 0.0, "terminated": False, "failure": "step: ConnectionError"},
        {"prompt": "Begin.", "turns": [], "return": 0.0, "terminated": False},
    ]
    (tmp_path / "completions").mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=EPISODE), tmp_path / "completions" / "completions_00001.parquet")
    found = read_logs([tmp_path], lambda path: None)
    assert found.format == "table of episodes of trl_nlac"
    assert [[role for role, _ in messages] for messages in conversations(found)] == [
        ["user", "assistant", "user", "assistant"],
        ["user", "assistant", "user"],
    ]
    assert [(row["reward"], row["terminated"]) for row in found.rows] == [(1.0, True), (0.0, False)]
    failed = "its environment failed, so that its return is no outcome"
    assert found.unreadable == {failed: 1, "there is no message of the assistant that answers a user": 1}


def test_tables_of_a_run_with_tool_calls(tmp_path):
    """The markup of a chat template would be learned as plain text; in ReAct and as plain text JSON is an action."""
    call = '{"name": "look", "arguments": {"x": 1}}'
    texts = [f"<tool_call>\n{call}\n</tool_call>", f"Thought: x\nAction: {call}", call]
    rows = [
        {"prompt": "Begin.", "turns": [{"text": text, "action": call, "next_observation": "3"}], "return": 1.0}
        for text in texts
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=EPISODE), tmp_path / "episodes.parquet")
    found = read_logs([tmp_path / "episodes.parquet"], lambda path: None)
    assert [messages[1][1] for messages in conversations(found)] == texts[1:]
    (reason,) = found.unreadable
    assert reason.startswith("a table of episodes has no tool calls") and found.unreadable[reason] == 1


@pytest.mark.parametrize("damage", ["no parquet", "other columns"])
def test_other_files(tmp_path, damage):
    path = tmp_path / "logs.parquet"
    if damage == "no parquet":
        path.write_bytes(b"PAR1 not really")
    else:
        pq.write_table(pa.table({"text": ["hello"]}), path)
    with pytest.raises(ValueError, match="logs.parquet"):
        read_logs([path], lambda path: None)
