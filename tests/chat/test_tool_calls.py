# SPDX-License-Identifier: Apache-2.0

import json

import pytest

from trl_nlac.chat.tool_calls import parse_results, parse_tool_call, parse_tool_calls, with_objects, with_text


def test_parse_tool_call():
    assert parse_tool_call('{"name": "a", "arguments": {"b": 1}}') == ("a", {"b": 1})
    assert parse_tool_call('{"name": "a", "arguments": {}}') == ("a", {})
    for action in ("hello", "[1]", '{"arguments": {}}', '{"name": 3}', '{"name": "a", "arguments": [1]}'):
        assert parse_tool_call(action) is None
    answers = ('{"name": "Bob", "age": 3}', '{"name": "Bob"}', '[{"name": "Ann"}, {"name": "Bob"}]')
    assert [parse_tool_calls(answer) for answer in answers] == [[], [], []]  # in JSON


def test_observations_that_are_no_list_answer_every_call():
    assert parse_results('["a", "b"]', 2) == ["a", "b"] and parse_results('["a", "b"]', 1) == ['["a", "b"]']
    for observation in ("done", "[" * 10**5, "1" * 5000, '["a"]', '["a", 1]'):
        assert parse_results(observation, 2) == [observation] * 2


def message_of(call: dict) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_arguments_in_the_other_form():
    text = '{"date":"2024-01-01", "x": 1.0,\n"y": 10000000000000000000000}'
    written = message_of({"id": "a", "type": "function", "function": {"name": "f", "arguments": text}})
    read = with_objects(written)
    assert read["tool_calls"][0]["function"]["arguments"] == json.loads(text) and read["tool_calls"][0]["id"] == "a"
    assert with_text(written) == written and with_objects(read) == read
    assert json.loads(with_text(read)["tool_calls"][0]["function"]["arguments"]) == json.loads(text)
    with pytest.raises(ValueError, match="A tool call has no name, or its arguments are not a JSON object"):
        with_objects(message_of({"name": "f", "arguments": "[1]"}))
    with pytest.raises(ValueError, match="JSON does not hold the arguments of a tool call: Object of type set"):
        with_text(message_of({"name": "f", "arguments": {"x": {1}}}))
