# SPDX-License-Identifier: Apache-2.0

"""The table of the reader, and that every entrance reads by it."""

import pytest
from helpers.log_samples import request

from trl_nlac.chat.message_reader import read_conversation, read_question
from trl_nlac.episodes.logs import logs_dataset
from trl_nlac.episodes.recorder import MalformedResult, checked_opening
from trl_nlac.episodes.trl_env import ToolEnvironment
from trl_nlac.gateway.chat_requests import RequestRefused, read_chat, read_proposal
from trl_nlac.log_formats.chat import read_conversations, read_requests
from trl_nlac.log_formats.logged import LoggedConversations


USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def said(text: str | None, *calls: dict, **others) -> dict:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **others}


def call(name: str, arguments="{}", **others) -> dict:
    return {**others, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text="done", **others) -> dict:
    return {"role": "tool", "content": text, **others}


READ = [
    ([{"role": "developer", "content": "a"}, SYSTEM, USER], [{"role": "system", "content": "a\n\nBe brief."}, USER]),
    ([SYSTEM], [{**SYSTEM, "role": "user"}]),
    ([SYSTEM, SYSTEM], [SYSTEM, {**SYSTEM, "role": "user"}]),
    ([USER, said("a"), SYSTEM], [USER, said("a"), {**SYSTEM, "role": "user"}]),
    ([USER, said("a"), said(None, call("f")), result()], [USER, said("a", call("f")), result()]),
    ([USER, said("a"), said("b"), USER], [USER, said("a\nb"), USER]),
    ([SYSTEM, said("Hello!"), USER], [SYSTEM, said("Hello!"), USER]),
    ([{"role": "user", "content": ["a", {"type": "input_text", "text": "b"}]}], [{**USER, "content": "a\nb"}]),
    ([USER, {"role": "assistant", "content": None, "refusal": "No."}, USER], [USER, said("No."), USER]),
    *(
        ([USER, said("x", **{name: "so"}, weight=1.5), USER], [USER, said("x", **{name: "so"}), USER])
        for name in ("reasoning", "reasoning_content", "thinking")
    ),
    (
        [USER, said(None, function_call={"name": "f", "arguments": None}), {"role": "function", "content": None}],
        [USER, said("", call("f")), result("")],
    ),
    *(
        ([USER, said(None, call("f", value)), result()], [USER, said("", call("f", text)), result()])
        for value, text in [("null", "{}"), (None, "{}"), ("", "{}"), ({"x": 1}, '{"x": 1}'), ('{"x":1}', '{"x":1}')]
    ),
    (
        [USER, said(None, call("f"), call("g")), result("g", name="g"), result("f", name="f")],
        [USER, said("", call("f"), call("g")), result("f", name="f"), result("g", name="g")],
    ),
    (
        [{"role": "user", "content": "caf\udce9"}, said(None, call("f", r'{"x": "\udce9"}')), result()],
        [{"role": "user", "content": "caf?"}, said("", call("f", '{"x": "?"}')), result()],
    ),
    ([USER, said(None, call("f")), result(), USER], [USER, said("", call("f")), result(), USER]),
]


@pytest.mark.parametrize(("given", "expected"), READ)
def test_what_is_read(given, expected):
    assert read_conversation(given)[0] == expected
    assert read_conversation(expected)[0] == expected
    assert read_question(given) == expected


REFUSED = [
    (None, "no list of messages"),
    ([], "no list of messages"),
    ([{"content": "a"}], "no list of messages"),
    ([said("go")], "does not begin with a user's message"),
    ([said(None, call("f")), result(), USER], "does not begin with a user's message"),
    ([said(None, call("f")), USER], "the assistant calls tools before a user has said anything"),
    ([{"role": "robot", "content": "a"}], "the role 'robot' is none of"),
    ([{"role": "user", "content": [IMAGE]}], "the content of message 0 is not text"),
    ([USER, said(None, call("look", "{door}"))], "message 1 has a tool call without a name, or whose arguments"),
    ([USER, said(None, call("look", '["door"]'))], "message 1 has a tool call without a name, or whose"),
    ([USER, said(None, call("look", "[" * 10**5))], "message 1 has a tool call without a name, or whose"),
    ([USER, said(None, call("look", '{"x": Infinity}'))], "JSON does not hold the arguments"),
    ([USER, said("go", call("look", id=7))], "message 1 has a tool call whose id is not text"),
    ([USER, said("go"), result()], "the result of a tool that nothing called"),
    ([USER, said(None, call("f"), call("g")), result(), said("go")], "before message 3, 1 tool calls have no result"),
    ([USER, said(None, call("f")), USER, said("go")], "before message 2, 1 tool calls have no result"),
    ([USER, said(None, call("f"), call("g")), result()], "at its end, 1 tool calls have no result"),
    ([USER, said(None, call("f")), result(), USER, result()], "the result of a tool that nothing called"),
    ([USER | {"tool_calls": [call("f")]}], "message 0 calls tools, and is not the assistant's"),
    ([USER, said("go", reasoning_content=["so"])], "message 1 has a name, an id or a chain of thought"),
    (
        [USER, said(None, call("f")), result(tool_call_id="a")],
        "after message 1, results have the `tool_call_id` ['a'], and the calls are [None]",
    ),
    *(
        ([USER, said(None, call("f", id="a"), call("g", id="b")), result(**one), result(**other)], problem)
        for one, other, problem in [
            ({"tool_call_id": "a"}, {"tool_call_id": "a"}, "results have the `tool_call_id`"),
            ({"tool_call_id": "a"}, {}, "results have the `tool_call_id`"),
            ({"name": "f"}, {"name": "h"}, "results have the `name`"),
        ]
    ),
]


@pytest.mark.parametrize(("messages", "problem"), REFUSED)
def test_what_is_refused(messages, problem):
    with pytest.raises(ValueError) as refused:
        read_conversation(messages)
    assert problem in str(refused.value)


def test_the_first_action_is_found_again():
    messages = [SYSTEM, SYSTEM, USER, said("a"), said("b"), USER, said("c"), said("d")]
    assert read_conversation(messages)[1] == [0, 0, 1, 2, 2, 3, 4, 4]
    (row,) = logs_dataset([{"messages": messages, "reward": 1.0, "first_action": 6}])
    assert row["first_action"] == 4


class Silent:
    """A TRL environment, which adds what `reset` returns to the prompt."""

    def reset(self, prompt):
        return ""


@pytest.mark.parametrize(
    "messages", [*(messages for messages, _ in [*READ, *REFUSED] if messages), [USER, said("go")]]
)
def test_a_conversation_means_the_same_through_every_entrance(messages):
    def outcome_of(read):
        try:
            return read()
        except (ValueError, MalformedResult, RequestRefused) as error:
            return str(error)

    expected = outcome_of(lambda: read_question(messages))
    reset = outcome_of(lambda: checked_opening(messages).messages)
    asked = outcome_of(lambda: read_chat({"messages": messages}).messages)
    assert outcome_of(lambda: checked_opening(ToolEnvironment(Silent()).reset(messages)).messages) == reset
    assert outcome_of(lambda: read_proposal({"messages": messages, "action": "go"}).messages) == asked
    answered = [*messages, {"role": "assistant", "content": "end"}]
    log = LoggedConversations()
    read_conversations([{"messages": answered, "reward": 1}], None, log)
    replay = outcome_of(lambda: logs_dataset([{"messages": answered, "reward": 1}])[0]["messages"])
    if isinstance(expected, list):
        end = {"role": "assistant", "content": "end"}
        assert reset == asked == expected
        assert [row["messages"] for row in log.rows] == [[*expected, end]] and replay == [*expected, end]
        requests = LoggedConversations()
        read_requests([request(messages, end, reward=1)], None, requests)
        assert [row["messages"] for row in requests.rows] == [[*expected, end]]
    elif "the last message is the assistant's" in expected:
        assert expected in reset and expected in asked
        assert len(log.rows) == 1  # the two messages are one answer
    else:
        reasons = [reset, asked, replay]
        place = expected.find(" tool calls have no result")
        if place < 0:
            assert all(expected in reason for reason in reasons) and not log.rows, (expected, reasons)
        else:
            assert all(expected[place:] in reason for reason in reasons) and not log.rows


def test_a_call_in_both_forms_is_one_call():
    new = {"id": "a", "function": {"name": "look", "arguments": '{"x": 1}'}}
    said = {"role": "assistant", "tool_calls": [new], "function_call": {"name": "look", "arguments": '{"x":1}'}}
    read, _ = read_conversation([{"role": "user", "content": "Hi."}, said])
    assert [call["id"] for call in read[-1]["tool_calls"]] == ["a"]
    said["function_call"] = {"name": "look", "arguments": '{"x": true}'}
    with pytest.raises(ValueError, match="message 1 has `tool_calls`, and another call in `function_call`"):
        read_conversation([{"role": "user", "content": "Hi."}, said])
