# SPDX-License-Identifier: Apache-2.0

import json
import math

import numpy as np
import pytest
from datasets import Dataset
from helpers.testing_utils import make_roles, make_roles_of, make_tokenizer, read_logs

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import call_message
from trl_nlac.episodes.logs import load_logs, logs_dataset, offline_tasks


class TestLogs:
    def test_what_cannot_be_cut_is_named(self):
        contents = ["baku 2", "route legal ruby photo noon", "refused needs billing 1", "route legal ruby photo noon"]
        messages = [{"role": ["user", "assistant"][i % 2], "content": text} for i, text in enumerate(contents)]
        logs = Dataset.from_list([{"messages": messages, "reward": 0.0}])
        (whole,) = read_logs(logs, make_roles([]))
        for limit, problem in (
            (3, r"row 0: the task has 6 tokens, `max_prompt_length` is 3"),
            (15, "row 0: The state before message 3 does not fit into `max_prompt_length=15`"),
        ):
            with pytest.raises(ValueError, match=problem):
                read_logs(logs, make_roles([]), max_prompt_length=limit)
        end = {"role": "user", "content": "refused " * 20}  # after the last action: of no state
        logs = Dataset.from_list([{"messages": [*messages, end], "reward": 0.0}])
        (logged,) = read_logs(logs, make_roles([]), max_prompt_length=len(whole.token_ids))
        np.testing.assert_array_equal(logged.token_ids, whole.token_ids)

    def test_misspelt_columns_are_reported(self, caplog):
        rows = [{name: row[name] for name in ("messages", "reward")} for row in make_rows(2)]
        rows = [{**row, "frist_action": 1, "terminate": False, "model": "x"} for row in rows]
        for read in (logs_dataset, lambda rows: read_logs(Dataset.from_list(rows), make_roles([]))):
            caplog.clear()
            read(rows)
            assert "`frist_action` of logged conversations is not read. Is it meant as `first_action`?" in caplog.text
            assert "`terminated`?" in caplog.text and "`model`" not in caplog.text

    def test_many_malformed_rows_are_counted_by_reason(self):
        user, assistant = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
        robot = {"role": "robot", "content": "c"}
        two = [{"messages": [user, assistant, *[robot] * (1 + i % 2)], "reward": 0.0} for i in range(6)]
        rows = [{"messages": [user], "reward": 0.0}, *two, {"messages": [user, assistant], "reward": 1.0}]
        with pytest.raises(ValueError) as error:
            logs_dataset(rows)
        assert "7 of 8 rows" in str(error.value) and "row 4: the role 'robot' is none of" in str(error.value)
        assert "row 5" not in str(error.value)
        reasons = (
            "All, with N for numbers: 6 times, the role 'robot' is none of system, user, assistant, tool; 1 times"
        )
        assert reasons in str(error.value)
        with pytest.raises(ValueError, match="`replay_dataset` has no column `reward`"):
            read_logs(Dataset.from_list([{"messages": [user]}]), make_roles([]))

    @pytest.mark.parametrize(
        ("column", "value", "problem"),
        [
            ("task", "{", "its `task` is not JSON"),
            ("task", "[1]", "its `task` is not a JSON object"),
            ("task", r'{"x": "\ud83d"}', "its `task` or `tools` cannot be written as JSON: .*surrogates"),
            ("tools", '{"name": "f"}', "its `tools` are not a list of JSON schemas"),
            ("tools", [{"type": "function", "function": {}}], "one of its `tools` has no name"),
            ("first_action", 1.0, r"its `first_action` is 1\.0, expected that of"),
        ],
    )
    def test_other_columns_are_checked(self, column, value, problem):
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        row = {"messages": messages, "reward": 1.0, column: value}
        for make in (lambda: logs_dataset([row]), lambda: read_logs(Dataset.from_list([row]), make_roles([]))):
            with pytest.raises(ValueError, match=f"row 0: {problem}"):
                make()

    def test_empty_columns_say_nothing(self):
        (episode,) = read_logs(logs_dataset([{**make_rows(1)[0], "task": "", "tools": ""}]), make_roles([]))
        assert episode.task == {} and episode.tools == ()


USER = {"role": "user", "content": "go"}


class TestFiles:
    def test_a_file_of_another_program(self, tmp_path):
        """It begins with a byte order mark, and a text has separators of lines that are none of the file."""
        path, rows = tmp_path / "logs.jsonl", make_rows(2)
        rows[0]["messages"][0]["content"] = "one\u2028two\x85three"
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines), encoding="utf-8-sig")
        assert load_logs(path)["messages"] == [row["messages"] for row in rows]

    def test_a_file_with_a_broken_line(self, tmp_path):
        path = tmp_path / "logs.jsonl"
        path.write_text("\n" + "\n".join(map(json.dumps, make_rows(1))) + '\n{"messages": \n')
        with pytest.raises(ValueError, match=f"line 3 of {path} is not JSON"):
            load_logs(str(path))
        path.write_text('[{"messages": 1}, 2]')
        with pytest.raises(ValueError, match="row 0: there is no list of messages .*; row 1: it is not an object"):
            load_logs(path)

    def test_nulls_of_json_are_kept_and_those_of_structures_dropped_with_a_warning(self, caplog):
        """In a structure nobody can tell a null from an absent argument."""
        given = [{"date": "2024-01-01", "x": 1}, {"date": "2024-01-02T00:00:00", "x": 1.5, "y": None}]
        rows = [{"messages": [USER, call_message([("f", each)])], "reward": 1.0} for each in given]
        roles = make_roles_of(ChatEncoder(make_tokenizer("qwen2_5")), [], action_format="tool_call")

        def arguments(dataset):
            return [json.loads(episode.turns[0].action)["arguments"] for episode in read_logs(dataset, roles)]

        assert arguments(logs_dataset(rows)) == given and not caplog.messages
        assert arguments(Dataset.from_list(rows, on_mixed_types="use_json")) == given and not caplog.messages
        merged = [{"date": "2024-01-01", "x": 1.0}, {"date": "2024-01-02T00:00:00", "x": 1.5}]
        assert arguments(Dataset.from_list(rows)) == merged
        assert "structures, in which `datasets` has merged those of all rows" in caplog.messages[0]

    @pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
    @pytest.mark.parametrize(
        ("action_format", "expected"),
        [
            ("tool_call", "<think>\nHm.\n</think>\n\nLet me see.\n<tool_call>"),
            ("react", "Thought: Let me see.\nAction: {"),
        ],
    )
    def test_what_stands_beside_calls_is_read(self, action_format, expected, field):
        roles = make_roles_of(ChatEncoder(make_tokenizer("qwen3")), [], action_format=action_format)
        said = call_message([("look", {})], "Let me  see." if action_format == "react" else "Let me see.")
        results = [{"role": "tool", "content": "ok"}, {"role": "assistant", "content": "done"}]
        row = {"messages": [USER, said | {field: "Hm."}, *results], "reward": 1.0}
        (episode,) = read_logs(logs_dataset([row]), roles)
        assert expected in roles.chat.tokenizer.decode(episode.token_ids)

    def test_what_cannot_be_kept_is_refused_by_row(self):
        roles = make_roles([])
        for value, problem in (
            (math.inf, "JSON does not hold the arguments of a tool call of message 1"),
            (
                np.datetime64("2024-01-01").item(),
                "JSON does not hold the arguments of a tool call of message 1: Object",
            ),
        ):
            rows = make_rows(2)
            rows[1]["messages"][1] = call_message([("look", {"x": value})])
            with pytest.raises(ValueError, match=f"1 of 2 rows .*row 1: {problem}"):
                logs_dataset(rows)
        as_json = Dataset.from_list(
            [{"messages": [USER, {"role": "assistant", "content": "a", "n": [1, {}]}], "reward": 0.0}],
            on_mixed_types="use_json",
        )
        assert len(read_logs(as_json, roles)) == 1


def make_rows(number: int) -> list[dict]:
    opening = {"role": "user", "content": "situ 2"}
    actions = [{"role": "assistant", "content": f"go {i}"} for i in range(number)]
    return [{"messages": [opening, action], "reward": float(i)} for i, action in enumerate(actions)]


def test_shares_of_processes():
    rows = make_rows(5)
    rows[3]["reward"] = float("inf")
    dataset = Dataset.from_list(rows)
    assert [e.score for e in read_logs(dataset, make_roles([]), 0, 2)] == [0.0, 2.0, 4.0]
    with pytest.raises(ValueError, match="1 of 2 rows .* are malformed. The first ones: row 3: the reward is inf"):
        read_logs(dataset, make_roles([]), 1, 2)


def test_every_process_needs_a_row():
    logs = Dataset.from_list(make_rows(4))
    with pytest.raises(ValueError, match="`replay_dataset` has 3 rows for 4 processes"):
        offline_tasks(logs.select(range(3)), {}, world_size=4)
    assert len(offline_tasks(logs, {}, world_size=4)) == 4
