# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from trl_nlac.gateway.chat_answers import chat_completion, chat_events, response, response_events
from trl_nlac.gateway.chat_requests import Reply, RequestRefused, is_echo, read_chat, read_response, reply_message


USER = {"role": "user", "content": "hello"}
LOOKUP = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}


def call(name: str, number: int, arguments: str = "{}") -> dict:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


class TestReading:
    def test_both_interfaces_say_the_same(self):
        chat = {
            "messages": [
                {"role": "system", "content": "be brief"},
                USER,
                {"role": "assistant", "content": "I look.", "tool_calls": [call("lookup", 1)]},
                {"role": "tool", "tool_call_id": "call_1", "content": "found"},
            ],
            "tools": [LOOKUP],
        }
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "call_1", "name": "lookup", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "found"},
        ]
        tool = {"type": "function", "strict": True, **LOOKUP["function"]}
        responses = {"instructions": "be brief", "input": items, "tools": [tool]}
        one, other = read_chat(chat), read_response(responses)
        assert one.messages == other.messages and one.tools == other.tools

    @pytest.mark.parametrize(
        "body, parameter",
        [
            ({"input": "hello", "previous_response_id": "resp_1"}, "previous_response_id"),
            ({"input": "hello", "text": {"format": {"type": "json_schema"}}}, "text"),
            ({"input": "hello", "tools": [{"type": "web_search"}]}, "tools"),
            ({"input": [{"type": "computer_call"}]}, "input"),
            ({"input": None}, "input"),
            ({"n": 2}, "n"),
            ({"logprobs": True}, "logprobs"),
            ({"functions": [{}]}, "functions"),
            ({"response_format": {"type": "json_schema"}}, "response_format"),
            ({"stop": 3}, "stop"),
            ({"tools": {}}, "tools"),
            ({"tools": [{"type": "web_search"}]}, "tools"),
            ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
            ({"messages": None}, "messages"),
            ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages"),
        ],
        ids=str,
    )
    def test_what_is_not_offered_is_refused_by_name(self, body, parameter):
        with pytest.raises(RequestRefused) as refused:
            read_response(body) if "input" in body else read_chat({"messages": [USER], **body})
        error = refused.value.body["error"]
        assert error["param"] == parameter and error["type"] == "invalid_request_error"
        assert refused.value.status == 400 and str(refused.value) == error["message"]

    def test_half_characters_in_tools_become_marks(self):
        lookup = {**LOOKUP["function"], "parameters": {"properties": {"a": {"description": "half \udce9"}}}}
        (tool,) = read_chat({"messages": [USER], "tools": [{"type": "function", "function": lookup}]}).tools
        assert tool["function"]["parameters"] == {"properties": {"a": {"description": "half ?"}}}

    def test_no_tools_where_none_can_be_called(self):
        assert read_chat({"messages": [USER], "tools": [LOOKUP], "tool_choice": "none"}).tools == []
        assert read_chat({"messages": [USER], "tools": [LOOKUP], "tool_choice": "required"}).tools == [LOOKUP]


class TestEchoes:
    REPLY = reply_message("take red", [("lookup", {"b": 1, "a": 2})], ("</code>",))

    @pytest.mark.parametrize(
        "content, arguments, is_same",
        [
            ("take red", '{"a": 2, "b": 1}', True),
            ("take red\n", '{"b":1,"a":2}', True),
            ("take red</code>", '{"a": 2, "b": 1}', True),
            ("take red, please", '{"a": 2, "b": 1}', False),
            ("take red", '{"a": 3, "b": 1}', False),
        ],
    )
    def test_clients_write_it_in_other_ways(self, content, arguments, is_same):
        echo = {"role": "assistant", "content": content, "tool_calls": [call("lookup", 1, arguments)]}
        assert is_echo(echo, self.REPLY, ("</code>",)) is is_same


class TestAnswers:
    @pytest.mark.parametrize("calls", [[], [("lookup", {"name": "é"}), ("lookup", {})]], ids=["text", "calls"])
    def test_chat(self, calls):
        question = read_chat({"messages": [USER], "stream_options": {"include_usage": True}})
        reply = Reply(reply_message("take red", calls, ()), 7, 3)
        whole = ChatCompletion.model_validate(chat_completion(question, reply), strict=True)
        (choice,) = whole.choices
        assert choice.message.content == "take red" and whole.usage.total_tokens == 10
        assert choice.finish_reason == ("tool_calls" if calls else "stop")
        given = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls or []]
        assert given == calls
        *lines, last = "".join(chat_events(question, reply)).split("\n\n")[:-1]
        assert last == "data: [DONE]"
        chunks = [ChatCompletionChunk.model_validate_json(line.removeprefix("data: ")) for line in lines]
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        assert "".join(delta.content or "" for delta in deltas) == "take red"
        streamed = [c for delta in deltas for c in delta.tool_calls or []]
        assert [(c.index, c.id) for c in streamed] == [
            (i, c.id) for i, c in enumerate(choice.message.tool_calls or [])
        ]
        assert chunks[-2].choices[0].finish_reason == choice.finish_reason and chunks[-1].usage.prompt_tokens == 7

    @pytest.mark.parametrize("calls", [[], [("lookup", {"name": "é"}), ("lookup", {})]], ids=["text", "calls"])
    def test_responses(self, calls):
        question = read_response({"input": "hello"})
        reply = Reply(reply_message("" if calls else "take red", calls, ()), 7, 3)
        whole = Response.model_validate(response(question, reply))
        assert whole.output_text == ("" if calls else "take red") and whole.usage.total_tokens == 10
        given = [(item.name, json.loads(item.arguments)) for item in whole.output if item.type == "function_call"]
        assert given == calls
        events = [event.split("\ndata: ") for event in "".join(response_events(question, reply)).split("\n\n")[:-1]]
        bodies = [json.loads(body) for _, body in events]
        assert [body["sequence_number"] for body in bodies] == list(range(len(bodies)))
        assert [name for name, _ in events] == [f"event: {body['type']}" for body in bodies]
        assert bodies[0]["type"] == "response.created" and bodies[-1]["type"] == "response.completed"
        Response.model_validate(bodies[-1]["response"])

    def test_a_stream_has_no_usage_that_was_not_asked_for(self):
        reply = Reply(reply_message("take red", [], ()), 7, 3)
        for options in (None, {"include_usage": False}):
            question = read_chat({"messages": [USER], "stream": True, "stream_options": options})
            assert "usage" not in "".join(chat_events(question, reply))

    def test_half_characters_of_a_request_do_not_break_its_stream(self):
        reply = Reply(reply_message("take red", [], ()), 7, 3)
        half = {"model": "\ud83d", "instructions": "half \ud83d"}
        chat, responses = read_chat({"messages": [USER], **half}), read_response({"input": "hello", **half})
        for events in (chat_events(chat, reply), response_events(responses, reply)):
            assert b"take red" in "".join(events).encode()

    def test_an_answer_that_is_cut(self):
        reply = Reply(reply_message("take r", [], ()), 7, 3, finished=False)
        question = read_chat({"messages": [USER]})
        assert chat_completion(question, reply)["choices"][0]["finish_reason"] == "length"
        assert '"finish_reason": "length"' in "".join(chat_events(question, reply))
        question = read_response({"input": "hello"})
        whole = Response.model_validate(response(question, reply))
        assert whole.status == whole.output[0].status == "incomplete"
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert "event: response.incomplete\n" in "".join(response_events(question, reply))
