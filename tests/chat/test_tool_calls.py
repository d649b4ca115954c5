# SPDX-License-Identifier: Apache-2.0

from trl_nlac.chat.tool_calls import parse_results, parse_tool_call, parse_tool_calls


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
