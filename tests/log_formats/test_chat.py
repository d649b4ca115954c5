# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from helpers.log_samples import ASKED, CALL, CALLED, SAID, SEEN, TOOL, read, request

from trl_nlac.episodes.conversations import write_json_lines
from trl_nlac.episodes.logs import load_logs
from trl_nlac.log_formats.chat import read_requests
from trl_nlac.log_formats.log_files import read_logs
from trl_nlac.log_formats.logged import LoggedConversations


def speakers(found: LoggedConversations) -> list[list[str]]:
    return [[message["role"] for message in row["messages"]] for row in found.rows]


class TestConversations:
    def test_is_read_as_it_is(self, tmp_path):
        row = {"messages": [*ASKED, CALLED, SEEN, SAID], "reward": 0.5, "tools": [TOOL], "task": {"order": "W1"}}
        found = read(tmp_path, row)
        assert found.format == "OpenAI chat conversations" and not found.unreadable and not found.notes
        [read_row] = found.rows
        assert read_row["messages"] == [*ASKED, {"role": "assistant", "content": "", "tool_calls": [CALL]}, SEEN, SAID]
        assert (read_row["reward"], read_row["tools"], read_row["task"]) == (0.5, [TOOL], {"order": "W1"})

    def test_functions_of_older_interfaces_are_tools(self, tmp_path):
        row = {"messages": [*ASKED, SAID], "reward": 1, "functions": [TOOL["function"]]}
        assert read(tmp_path, row).rows[0]["tools"] == [TOOL]

    def test_odd_rows_are_counted_and_lose_no_others(self, tmp_path):
        good = {"messages": [*ASKED, SAID], "score": "passed"}
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
        found = read(
            tmp_path,
            good,
            '{"messages": [{"role"',
            "a line of text",
            good,
            7,
            {"messages": [*ASKED, SAID]},
            {"messages": [*ASKED, SAID], "score": "so so"},
            {"messages": [*ASKED, SAID], "score": float("nan")},
            {"messages": [*ASKED, SAID], "score": 10**400},
            {"messages": ASKED, "score": 1},
            {"messages": [image, SAID], "score": 1},
            {"messages": [*ASKED, CALLED, ASKED[1], SAID], "score": 1},
            {"messages": "none", "score": 1},
            {"conversation": []},
            good,
        )
        assert [row["reward"] for row in found.rows] == [1.0, 1.0, 1.0]
        assert found.unreadable == {
            "it is not JSON": 1,  # with the line of text after it
            "it is no conversation with `messages`": 2,
            "it has no outcome": 1,
            "its outcome is a word that means neither success nor failure": 1,
            "its outcome is neither a number, nor true or false": 2,
            "there is no message of the assistant that answers a user": 1,
            "the content of message N is not text": 1,
            "before message N, N tool calls have no result": 1,
            "there is no list of messages with a `role` each": 1,
        }

    @pytest.mark.parametrize(
        ("row", "outcome", "reward"),
        [
            ({"success": True}, None, 1.0),
            ({"metadata": {"resolved": "no"}}, None, 0.0),
            ({"reward": 1, "grade": {"human": 0.25}}, "grade.human", 0.25),
            ({"reward": 1, "grade.human": "fail"}, "grade.human", 0.0),
        ],
    )
    def test_outcomes(self, tmp_path, row, outcome, reward):
        found = read(tmp_path, {"messages": [*ASKED, SAID], **row}, outcome=outcome)
        assert [row["reward"] for row in found.rows] == [reward]

    def test_half_a_character_is_refused(self, tmp_path):
        """No file accepts it; where a text was cut, escapes of JSON can end with one."""
        row = {"messages": [*ASKED, SAID], "reward": 1}
        tool = {"name": "find", "description": "cut \ud83d"}
        found = read(tmp_path, {**row, "tools": [tool]}, {**row, "task_id": "a\ud83d"}, {**row, "task": "\ud83d"}, row)
        assert len(found.rows) == 1 and found.unreadable.total() == 3
        assert all(reason.startswith("its `task` or `tools` cannot be written") for reason in found.unreadable)
        write_json_lines(found.rows, tmp_path / "written.jsonl")

    def test_a_task_that_is_null_hides_no_id(self, tmp_path):
        row = {"messages": [*ASKED, SAID], "reward": 1, "task_id": 7}
        found = read(tmp_path, {**row, "task": None}, row, {**row, "task": "W1"})
        assert [row["task"] for row in found.rows] == [{"task": 7}, {"task": 7}, {"task": "W1"}]

    def test_an_answer_beside_the_messages_is_noted(self, tmp_path):
        row = {"messages": [*ASKED, SAID, *ASKED[1:]], "reward": 1}
        found = read(tmp_path, {**row, "response": "It is lost."}, {**row, "response": None})
        assert speakers(found) == [["system", "user", "assistant", "user"]] * 2
        assert found.notes == {"a `response` beside `messages` is left out: it is not an object with `choices`": 1}


class TestRequests:
    def test_become_conversations(self, tmp_path):
        called = {**CALLED, "content": "Let me see. \n"}
        again = {
            **{**CALLED, "content": "Let me see."},
            "tool_calls": [{**CALL, "id": "x", "function": {**CALL["function"], "arguments": '{"id":"W1"}'}}],
        }
        other = [{"role": "user", "content": "Where is W2?"}]
        found = read(
            tmp_path,
            request(ASKED, called),
            request(other, SAID, reward=0),
            request([*ASKED, again, {**SEEN, "tool_call_id": "x"}], SAID, reward=1),
        )
        assert found.format == "OpenAI chat requests with their answers"
        assert speakers(found) == [["user", "assistant"], ["system", "user", "assistant", "tool", "assistant"]]
        assert [row["reward"] for row in found.rows] == [0.0, 1.0]
        assert found.rows[1]["tools"] == [TOOL] and not found.notes

    def test_the_outcome_of_a_run_is_that_of_all_its_conversations(self, tmp_path):
        """A sub-agent, and a history that was summarized."""
        run = {"metadata": {"conversation_id": "r1"}}
        summary = [{"role": "user", "content": "So far: W1 is lost. Go on."}]
        found = read(
            tmp_path,
            request(ASKED, CALLED, **run),
            request([{"role": "user", "content": "Look."}], SAID, **run),
            request(summary, SAID, conversation_id="r1", reward=1),
            request(ASKED, CALLED, conversation_id="r2"),
        )
        assert [row["reward"] for row in found.rows] == [1.0, 1.0, 1.0]
        assert found.unreadable == {"it has no outcome": 1} and list(found.notes.values()) == [2]

    def test_several_outcomes_of_a_session(self, tmp_path):
        asked = [[{"role": "user", "content": f"task {name}"}] for name in "ABC"]
        given = ({"reward": 1}, {"reward": 0}, {})
        found = read(
            tmp_path, *(request(one, SAID, session_id="s", **own) for one, own in zip(asked, given, strict=True))
        )
        assert [(row["messages"][0]["content"], row["reward"]) for row in found.rows] == [("task A", 1), ("task B", 0)]
        assert found.unreadable == {"its run has several outcomes, and none is its own": 1}
        assert found.notes["a run with several outcomes: each of its conversations has its own"] == 1
        goes_on = request([*ASKED, SAID, *asked[0]], SAID, session_id="s", reward=1)
        found = read(tmp_path, request(ASKED, SAID, session_id="s", reward=0), goes_on)
        assert [row["reward"] for row in found.rows] == [1.0]
        assert found.notes == {"a conversation with several outcomes: the last is taken": 1}

    @pytest.mark.parametrize("others", [{"success": False}, {"metadata": {"score": 0}}])
    def test_several_outcomes_of_a_row(self, tmp_path, others):
        row = {"messages": [*ASKED, SAID], "reward": 1, **others}
        (reason,) = read(tmp_path, row).unreadable
        assert "several outcomes that differ, reward, " in reason and "choose one with --outcome" in reason
        assert read(tmp_path, row, outcome="reward").rows[0]["reward"] == 1
        assert read(tmp_path, {**row, "success": True, "metadata": {"score": 1.0}}).rows

    def test_a_request_that_is_repeated_begins_no_conversation(self, tmp_path):
        """A client asks again when it got no answer, at once or later. Its first step did not end the run."""
        goes_on = [*ASKED, CALLED, SEEN]
        for calls in (
            [(ASKED, CALLED), (ASKED, CALLED), (goes_on, SAID)],
            [(ASKED, CALLED), (goes_on, SAID), (ASKED, CALLED)],
        ):
            found = read(tmp_path, *(request(*call, conversation_id="r1", reward=1) for call in calls))
            assert speakers(found) == [["system", "user", "assistant", "tool", "assistant"]]
            assert found.notes == {"a request that the same run repeats, with the same answer": 1}
        found = read(tmp_path, *(request(ASKED, SAID, conversation_id="r1", reward=reward) for reward in (1, 0)))
        assert [row["reward"] for row in found.rows] == [1, 0]  # which of them is right, nobody can tell
        assert found.notes["a run with several outcomes: each of its conversations has its own"] == 1

    def test_an_id_of_each_request_splits_no_conversation(self, tmp_path):
        run = {"metadata": {"conversation_id": "r1"}}
        found = read(
            tmp_path,
            request(ASKED, CALLED, run_id="a", **run),
            request([*ASKED, CALLED, SEEN], SAID, run_id="b", reward=1, **run),
        )
        assert speakers(found) == [["system", "user", "assistant", "tool", "assistant"]] and not found.unreadable

    def test_odd_requests(self, tmp_path):
        two = {**request(ASKED, SAID), "response": {"choices": [{"message": SAID}, {"message": SAID}]}}
        batch = {
            "request": {"body": {"messages": ASKED}},
            "response": {"body": json.dumps({"choices": [{"message": SAID}]})},
        }
        found = read(
            tmp_path,
            two,
            {**request(ASKED, SAID), "response": {"error": {"message": "overloaded"}}},
            {**batch, "reward": 1},
            {"messages": ASKED, "choices": [{"message": SAID}], "reward": 0},
            {**request(ASKED, SAID, reward=1), "response": {"choices": [{"message": "It is lost."}]}},
        )
        assert [row["reward"] for row in found.rows] == [1.0, 0.0]
        assert found.unreadable.total() == 3

    def test_an_answer_that_was_cut(self, tmp_path):
        cut = request(ASKED, SAID, reward=0)
        cut["response"]["choices"][0]["finish_reason"] = "length"
        assert read(tmp_path, cut).rows[0]["terminated"] is False
        goes_on = request([*ASKED, SAID, {"role": "user", "content": "Go on."}], SAID, reward=1)
        assert [row["terminated"] for row in read(tmp_path, cut, goes_on).rows] == [True]

    def test_runs_that_say_the_same_are_several_conversations(self, tmp_path):
        found = read(tmp_path, *(request(ASKED, SAID, reward=reward) for reward in (1, 0, 0.5)))
        assert [row["reward"] for row in found.rows] == [1.0, 0.0, 0.5]


class TestFiles:
    def test_unknown_format(self, tmp_path):
        with pytest.raises(ValueError, match="no format of logs that is known"):
            read(tmp_path, {"text": "hello"})

    @pytest.mark.parametrize("name", ["nowhere", "logs.txt"])
    def test_no_log(self, tmp_path, name):
        (tmp_path / "logs.txt").touch()
        with pytest.raises(ValueError, match=name):
            read_logs([tmp_path / name], None)

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])
    def test_other_encodings(self, tmp_path, encoding):
        """Unicode is seen by its first bytes. Of other bytes nothing is guessed, and the file is named."""
        rows = [{"messages": [*ASKED, {**SAID, "content": text}], "reward": 1} for text in ("Zürich", "Bern")]
        text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        (tmp_path / "logs.jsonl").write_text(text, encoding=encoding)
        found = read_logs([tmp_path], None)
        texts = [row["messages"][-1]["content"] for row in found.rows]
        if encoding != "latin-1":
            assert texts == ["Zürich", "Bern"] and not found.notes
            assert load_logs(tmp_path / "logs.jsonl")["messages"][0][-1]["content"] == "Zürich"
            return
        assert texts == ["Bern"] and found.unreadable == {"it is not JSON": 1}
        assert list(found.notes) == ["logs.jsonl has text that is not in utf-8, and is not read: write it in UTF-8"]
        with pytest.raises(ValueError, match="logs.jsonl is not text in utf-8: write it in UTF-8"):
            load_logs(tmp_path / "logs.jsonl")


def test_runs_side_by_side_without_an_id():
    def run(reward: float, *texts: str) -> list[dict]:
        said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
        return [
            {
                "request": {"messages": said[:i]},
                "response": {"choices": [{"message": said[i], "finish_reason": "stop"}]},
                "reward": reward,
            }
            for i in range(1, len(said), 2)
        ]

    won = run(1.0, "Parcel 1 is lost.", "route claims", "needs shipping", "route shipping")
    lost = run(0.0, "Parcel 1 is lost.", "route claims", "no such team", "give up")
    expected = {("route shipping", 1.0), ("give up", 0.0)}
    for order in ([*won, *lost], [won[0], lost[0], won[1], lost[1]], [lost[0], won[0], won[1], lost[1]]):
        found = LoggedConversations()
        read_requests(order, None, found)
        assert {(row["messages"][-1]["content"], row["reward"]) for row in found.rows} == expected
        assert len(found.rows) == 2
