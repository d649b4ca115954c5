# SPDX-License-Identifier: Apache-2.0


from trl_nlac.chat.tool_calls import (
    parse_results,
    parse_tool_call,
    parse_tool_calls,
    results_in_order,
    said,
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
    def test_results_are_put_in_the_order_of_their_calls(self):
        calls = [{"id": "a", "function": {"name": "f"}}, {"id": "b", "name": "g"}, {"id": "c", "name": "f"}]
        by_id = [{"tool_call_id": i, "content": i} for i in "cab"]
        assert [result["content"] for result in results_in_order(calls, by_id)] == ["a", "b", "c"]
        by_name = [{"name": name, "content": str(i)} for i, name in enumerate("ffg")]
        assert [result["content"] for result in results_in_order(calls, by_name)] == ["0", "2", "1"]
        bare = [{"content": i} for i in "xyz"]
        assert results_in_order(calls, bare) == bare


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
