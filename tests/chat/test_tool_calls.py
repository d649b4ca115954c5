# SPDX-License-Identifier: Apache-2.0

import json

import pytest

from trl_nlac.chat.tool_calls import (
    parse_results,
    parse_tool_call,
    parse_tool_calls,
    read_call,
    results_in_order,
    said,
    with_objects,
    with_text,
)


def test_parse_tool_call():
    assert parse_tool_call('{"name": "a", "arguments": {"b": 1}}') == ("a", {"b": 1})
    assert parse_tool_call('{"name": "a", "arguments": {}}') == ("a", {})
    for action in ("hello", "[1]", '{"arguments": {}}', '{"name": 3}', '{"name": "a", "arguments": [1]}'):
        assert parse_tool_call(action) is None
    answers = ('{"name": "Bob", "age": 3}', '{"name": "Bob"}', '[{"name": "Ann"}, {"name": "Bob"}]')
    assert [parse_tool_calls(answer) for answer in answers] == [[], [], []]  # in JSON


def message_of(*calls: dict) -> dict:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


class TestMessages:
    def test_calls_are_read(self):
        for function in (
            {"name": "f", "arguments": '{"x": null, "y": 1}'},
            {"name": "f", "arguments": {"x": None, "y": 1}},
        ):
            assert read_call({"id": "c", "function": function}) == read_call(function) == ("f", {"x": None, "y": 1})
        assert read_call({"name": "f"}) == read_call({"name": "f", "arguments": ""}) == ("f", {})
        broken = ("[1]", "{", "[" * 10**5, "1" * 5000, 1, [1], True)
        for call in (None, "f", {}, {"name": 1}, *({"name": "f", "arguments": arguments} for arguments in broken)):
            assert read_call(call) is None

    def test_arguments_in_the_other_form(self):
        text = '{"date":"2024-01-01", "x": 1.0,\n"y": 10000000000000000000000}'
        written = message_of({"id": "a", "type": "function", "function": {"name": "f", "arguments": text}})
        read = with_objects(written)
        assert (
            read["tool_calls"][0]["function"]["arguments"] == json.loads(text) and read["tool_calls"][0]["id"] == "a"
        )
        assert with_text(written) == written and with_objects(read) == read
        assert json.loads(with_text(read)["tool_calls"][0]["function"]["arguments"]) == json.loads(text)
        plain = {"role": "user", "content": "hello"}
        assert with_text(plain) == with_objects(plain) == plain
        with pytest.raises(ValueError, match="A tool call has no name, or its arguments are not a JSON object"):
            with_objects(message_of({"name": "f", "arguments": "[1]"}))
        with pytest.raises(ValueError, match="JSON does not hold the arguments of a tool call: Object of type set"):
            with_text(message_of({"name": "f", "arguments": {"x": {1}}}))

    def test_results_are_put_in_the_order_of_their_calls(self):
        calls = [{"id": "a", "function": {"name": "f"}}, {"id": "b", "name": "g"}, {"id": "c", "name": "f"}]
        by_id = [{"tool_call_id": i, "content": i} for i in "cab"]
        assert [result["content"] for result in results_in_order(calls, by_id)] == ["a", "b", "c"]
        by_name = [{"name": name, "content": str(i)} for i, name in enumerate("ffg")]
        assert [result["content"] for result in results_in_order(calls, by_name)] == ["0", "2", "1"]
        bare = [{"content": i} for i in "xyz"]
        assert results_in_order(calls, bare) == bare

    def test_results_of_other_calls_are_refused(self):
        calls = [{"id": "a", "name": "f"}, {"id": "b", "name": "g"}]
        for results, problem in (
            ([{"tool_call_id": "a"}, {"tool_call_id": "c"}], "results have the `tool_call_id`"),
            ([{"tool_call_id": "a"}, {"tool_call_id": "a"}], "results have the `tool_call_id`"),
            ([{"tool_call_id": "a"}, {}], "results have the `tool_call_id`"),
            ([{"name": "f"}, {"name": "h"}], "results have the `name`"),
            ([{}], "there are 1 results of 2 tool calls"),
        ):
            with pytest.raises(ValueError, match=problem):
                results_in_order(calls, results)


def test_clients_say_the_same_in_other_ways():
    written = message_of({"id": "a", "function": {"name": "f", "arguments": '{"x":1,"y":[2]}'}})
    echoed = message_of({"name": "f", "arguments": {"y": [2], "x": 1}}) | {"content": ""}
    assert said(written) == said(echoed)
    blocks = [{"type": "text", "text": "hi"}]
    assert said({"role": "user", "content": " hi\n"}) == said({"role": "user", "content": blocks})
    assert said(written) != said(message_of({"name": "f", "arguments": {"x": 1, "y": [3]}}))


def test_observations_that_are_no_list_answer_every_call():
    assert parse_results('["a", "b"]', 2) == ["a", "b"] and parse_results('["a", "b"]', 1) == ['["a", "b"]']
    for observation in ("done", "[" * 10**5, "1" * 5000, '["a"]', '["a", 1]'):
        assert parse_results(observation, 2) == [observation] * 2
