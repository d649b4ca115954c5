# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

import json

import pytest
from helpers.log_samples import ANSWER, CALLING, RESULT, TEXT, attributes_of, chat_span, otlp, score

from trl_nlac.log_formats.reading import read_logs


TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}]


def read(folder, *values, outcome: str | None = None, indent: int | None = None):
    (folder / "spans.jsonl").write_text("\n".join(json.dumps(value, indent=indent) for value in values))
    return read_logs([folder / "spans.jsonl"], lambda path: None, outcome)


def test_calls_of_a_trace_become_a_conversation(tmp_path):
    """In any order in the files, with spans that are not calls, and the evaluation at the root."""
    second = chat_span("t1", 20, [*TEXT, CALLING, RESULT], [ANSWER])
    tools = {
        "gen_ai.tool.definitions": TOOLS,
        "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
    }
    first = chat_span("t1", 9, TEXT, [CALLING], **tools)
    second["attributes"] += attributes_of({"gen_ai.system_instructions": tools["gen_ai.system_instructions"]})
    tool = {
        "traceId": "t1",
        "name": "execute_tool",
        "attributes": attributes_of({"gen_ai.operation.name": "execute_tool"}),
    }
    root = chat_span("t1", 1, [], [], [score(1.0)])
    root["attributes"] = attributes_of({"gen_ai.operation.name": "invoke_agent"})
    found = read(tmp_path, otlp(second, tool), otlp(first, root))
    assert found.format == "OpenTelemetry spans" and not found.unreadable
    [row] = found.rows
    assert row["reward"] == 1.0 and row["tools"][0]["function"]["name"] == "get_weather"
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert row["messages"][2]["tool_calls"][0]["function"] == {
        "name": "get_weather",
        "arguments": '{"location": "Paris"}',
    }
    assert row["messages"][2]["reasoning_content"] == "I need the tool."
    assert row["messages"][3] == {"role": "tool", "content": "rainy, 57°F", "tool_call_id": "call_1"}


def test_text_beside_the_results_of_tools_is_the_users(tmp_path):
    """As clients send it whose results stand in messages of the user."""
    text = [{"type": "text", "content": "and now do X"}, {"type": "text", "content": "quickly"}]
    result = {"role": "user", "parts": [*RESULT["parts"], *text]}
    own = {**CALLING, "parts": [*CALLING["parts"], *RESULT["parts"]]}  # a tool that the provider called
    found = read(
        tmp_path,
        otlp(chat_span("t1", 1, [*TEXT, CALLING, result], [ANSWER], [score(1)])),
        otlp(chat_span("t2", 2, [*TEXT, own, *TEXT], [ANSWER], [score(1)])),
    )
    [row] = found.rows
    assert [message["role"] for message in row["messages"]] == ["user", "assistant", "tool", "user", "assistant"]
    assert [message["content"] for message in row["messages"][2:4]] == ["rainy, 57°F", "and now do X\n\nquickly"]
    assert found.unreadable == {"a message of the assistant has the results of tools": 1}


def test_odd_spans(tmp_path):
    image = [{"role": "user", "parts": [{"type": "blob", "modality": "image", "content": "AA=="}]}]
    found = read(
        tmp_path,
        otlp(chat_span("t1", 1, TEXT, [ANSWER], [score(0)])),
        {"resourceSpans": [{"scopeSpans": 3}]},
        otlp(chat_span("t2", 2, image, [ANSWER], [score(1)])),
        otlp(chat_span("t3", 3, TEXT, [], [score(1)])),
        otlp(chat_span("t4", 4, TEXT, [ANSWER, ANSWER], [score(1)])),
        otlp(chat_span("t5", 5, TEXT, [ANSWER], [score("so so")])),
        otlp(chat_span("t6", 6, TEXT, [ANSWER], [score(1)], **{"error.type": "timeout"})),
        otlp(chat_span("t7", 7, TEXT, [ANSWER], [score(1)], **{"gen_ai.output.messages": '[{"role": "assis'})),
        otlp(chat_span("t8", 8, TEXT, [ANSWER], [score("pass")], **{"gen_ai.response.finish_reasons": ["length"]})),
    )
    assert [(row["reward"], row["terminated"]) for row in found.rows] == [(0.0, True), (1.0, False)]
    assert {reason.partition(",")[0].partition(":")[0]: count for reason, count in found.unreadable.items()} == {
        "a span does not have OpenTelemetry's form": 1,
        "a message has a part of the type 'blob'": 1,
        "the call of a model has no messages": 1,
        "an answer has N choices": 1,
        "it has no outcome": 1,
        "the call of a model failed": 1,
        "the messages of a call are not JSON": 1,
    }


def test_printed_spans_of_older_conventions(tmp_path):
    """As the SDK's console exporter prints them, an event for each message; the evaluation is a log record."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"location": "Paris"}'},
    }
    events = [
        ("gen_ai.system.message", {"content": "Be brief."}),
        ("gen_ai.user.message", {"content": "Weather in Paris?"}),
        ("gen_ai.assistant.message", {"tool_calls": json.dumps([call])}),
        ("gen_ai.tool.message", {"content": "rainy", "id": "call_1"}),
        ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": json.dumps({"content": "It rains."})}),
    ]
    span = {
        "name": "chat m",
        "context": {"trace_id": "0xt1", "span_id": "0x1"},
        "parent_id": None,
        "start_time": "2026-01-01T00:00:00.000000Z",
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.conversation.id": "c1"},
        "events": [{"name": name, "timestamp": "", "attributes": values} for name, values in events],
    }
    record = {"traceId": "0xt1", "eventName": "gen_ai.evaluation.result", "attributes": attributes_of(score(0.5)[1])}
    found = read(tmp_path, span, {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}, indent=4)
    [row] = found.rows
    assert row["reward"] == 0.5
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]


def test_which_of_several_evaluations(tmp_path):
    spans = otlp(
        chat_span("t1", 1, TEXT, [ANSWER], [score(1.0, "politeness"), score(0.0, "resolved")], **{"app.ok": True})
    )
    with pytest.raises(ValueError, match="several evaluations, politeness, resolved: choose one with --outcome"):
        read(tmp_path, spans)
    for name, reward in (("politeness", 1.0), ("resolved", 0.0), ("app.ok", 1.0)):
        assert [row["reward"] for row in read(tmp_path, spans, outcome=name).rows] == [reward]
