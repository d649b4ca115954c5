# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from helpers.log_samples import ANSWER, CALLING, RESULT, TEXT, attributes_of, chat_span, otlp, read, score, value_of


TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}]


def records_of(*records: dict) -> dict:
    return {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]}


def record(name: str, span: dict, body: dict | str | None = None, **attributes) -> dict:
    ids = {"traceId": span["traceId"], "spanId": span["spanId"]}
    others = {} if body is None else {"body": value_of(body)}
    return {**ids, "eventName": name, "timeUnixNano": "1", "attributes": attributes_of(attributes), **others}


def asking(text: str) -> list:
    return [{"role": "user", "parts": [{"type": "text", "content": text}]}]


def test_calls_of_a_trace_become_a_conversation(tmp_path):
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
    root["events"].append({"name": "gen_ai.user.message", "attributes": attributes_of({"content": "Weather?"})})
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
    scored = {"traceId": "0xt1", "eventName": "gen_ai.evaluation.result", "attributes": attributes_of(score(0.5)[1])}
    found = read(tmp_path, span, records_of(scored), indent=4)
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


CALLED = {"id": "c1", "name": "get_weather", "arguments": '{"location": "Paris"}'}
CONVENTIONS = {
    "OpenInference": {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.contents.0.message_content.type": "text",
        "llm.input_messages.0.message.contents.0.message_content.text": "Weather in Paris?",
        "llm.input_messages.1.message.role": "assistant",
        "llm.input_messages.1.message.tool_calls.0.tool_call.id": "c1",
        "llm.input_messages.1.message.tool_calls.0.tool_call.function.name": "get_weather",
        "llm.input_messages.1.message.tool_calls.0.tool_call.function.arguments": CALLED["arguments"],
        "llm.input_messages.2.message.role": "tool",
        "llm.input_messages.2.message.tool_call_id": "c1",
        "llm.input_messages.2.message.content": "rainy",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "It rains.",
        "llm.tools.0.tool.json_schema": json.dumps(TOOLS[0]),
    },
    "OpenLLMetry": {
        "llm.request.type": "chat",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "Weather in Paris?",
        "gen_ai.prompt.1.role": "assistant",
        **{f"gen_ai.prompt.1.tool_calls.0.{key}": value for key, value in CALLED.items()},
        "gen_ai.prompt.2.role": "tool",
        "gen_ai.prompt.2.tool_call_id": "c1",
        "gen_ai.prompt.2.content": "rainy",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "It rains.",
        "gen_ai.completion.0.finish_reason": "stop",
        "llm.request.functions.0.name": "get_weather",
        "llm.request.functions.0.parameters": json.dumps(TOOLS[0]["parameters"]),
    },
}


def span_of(attributes: dict, start: int = 1, *events: tuple) -> dict:
    return {**chat_span("t1", start, [], [], list(events)), "attributes": attributes_of(attributes)}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_messages_as_attributes_of_their_own(tmp_path, convention):
    (row,) = read(tmp_path, otlp(span_of(CONVENTIONS[convention], 1, score(1.0)))).rows
    roles = [message["role"] for message in row["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"] and row["reward"] == 1.0
    assert row["messages"][1]["tool_calls"][0] == {
        **{"id": "c1", "type": "function", "function": {"name": CALLED["name"], "arguments": CALLED["arguments"]}},
    }
    assert row["tools"][0]["function"]["parameters"] == TOOLS[0]["parameters"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"ai.model.id": "m", "ai.prompt.messages": "[]", "ai.response.text": "yo"},
        {"mlflow.spanType": '"CHAT_MODEL"', "mlflow.spanInputs": "{}"},
        {"langfuse.observation.type": "generation", "langfuse.observation.input": "hi"},
        {"openinference.span.kind": "LLM", "input.value": "hi"},
    ],
)
def test_calls_in_other_conventions_are_counted(tmp_path, attributes):
    others = span_of({"http.request.method": "GET"}, 3), span_of({"openinference.span.kind": "TOOL"}, 4)
    found = read(tmp_path, otlp(span_of(attributes), span_of(attributes, 2), *others))
    assert list(found.unreadable.values()) == [2]


@pytest.mark.parametrize("scores", [(1.0, 0.0), (0.0, 1.0)])
def test_outcomes_that_differ_are_not_chosen_from(tmp_path, scores):
    both = chat_span("t1", 1, asking("A?"), [ANSWER], [score(value) for value in scores])
    found = read(tmp_path, otlp(both))
    assert not found.rows and found.notes and found.unreadable == {"it has no outcome": 1}
    spans = [
        chat_span("t1", i, asking(f"{i}?"), [ANSWER], [score(value)] if value is not None else [])
        for i, value in enumerate((*scores, None))
    ]
    found = read(tmp_path, otlp(*spans))
    assert {row["messages"][0]["content"]: row["reward"] for row in found.rows} == {"0?": scores[0], "1?": scores[1]}
    assert found.unreadable.total() == 1 and any("several outcomes" in note for note in found.notes)


class TestConversationsOfOneTrace:
    @staticmethod
    def outcomes(folder, *spans, outcome: str | None = None) -> dict[str, float]:
        found = read(folder, *spans, outcome=outcome)
        assert set(found.unreadable) <= {"it has no outcome"}
        return {row["messages"][0]["content"]: row["reward"] for row in found.rows}

    @staticmethod
    def span(name: str, start: int, *events, **attributes) -> dict:
        named = {"gen_ai.conversation.id": name} if name else {}
        return chat_span("t1", start, asking(f"{name}?"), [ANSWER], list(events), **named, **attributes)

    @staticmethod
    def root(*events, **attributes) -> dict:
        span = chat_span("t1", 9, [], [], list(events))
        span["attributes"] = attributes_of({"gen_ai.operation.name": "invoke_agent", **attributes})
        return span

    def test_scores_of_their_own_spans(self, tmp_path):
        first, second = self.span("A", 1, score(1.0)), self.span("B", 2, score(0.0))
        assert self.outcomes(tmp_path, otlp(first, second)) == {"A?": 1.0, "B?": 0.0}
        assert self.outcomes(tmp_path, otlp(self.span("A", 1), second)) == {"B?": 0.0}
        assert self.outcomes(tmp_path, otlp(second, self.span("A", 1))) == {"B?": 0.0}

    def test_attributes_of_their_own_spans(self, tmp_path):
        first, second = self.span("A", 1, **{"app.ok": True}), self.span("B", 2, **{"app.ok": False})
        assert self.outcomes(tmp_path, otlp(first, second), outcome="app.ok") == {"A?": 1.0, "B?": 0.0}

    def test_a_score_of_a_span_without_one_is_of_all(self, tmp_path):
        spans = (self.span("A", 1), self.span("B", 2), self.span("", 3))
        assert self.outcomes(tmp_path, otlp(self.root(score(0.5)), *spans)) == {"A?": 0.5, "B?": 0.5, "?": 0.5}
        found = self.outcomes(tmp_path, otlp(*spans, self.root(**{"app.ok": True})), outcome="app.ok")
        assert found == {"A?": 1.0, "B?": 1.0, "?": 1.0}

    def test_a_score_that_names_its_conversation(self, tmp_path):
        name, values = score(1.0)
        second = record(name, {"traceId": "t2", "spanId": ""}, **score(0.0)[1], **{"gen_ai.conversation.id": "B"})
        root = self.root((name, {**values, "gen_ai.conversation.id": "A"}))
        spans = otlp(root, self.span("A", 1), self.span("B", 2), self.span("C", 3))
        assert self.outcomes(tmp_path, spans, records_of(second)) == {"A?": 1.0, "B?": 0.0}

    def test_a_call_that_names_none_is_of_the_only_one(self, tmp_path):
        root = self.root(score(1.0), **{"gen_ai.conversation.id": "A"})
        assert self.outcomes(tmp_path, otlp(root, self.span("", 1))) == {"?": 1.0}
        assert self.outcomes(tmp_path, otlp(self.span("A", 2, score(0.0)), self.span("", 1))) == {"A?": 0.0, "?": 0.0}


class TestLogRecords:
    SPAN = chat_span("t1", 1, [], [], [score(1.0)])
    SPAN["attributes"] = attributes_of({"gen_ai.operation.name": "chat"})

    @pytest.mark.parametrize("form", ["structure", "text"])
    @pytest.mark.parametrize("reason", ["stop", "length"])
    def test_a_message_each(self, tmp_path, form, reason):
        function = {"name": "get_weather", "arguments": '{"location": "Paris"}'}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        said = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": "It rains."}}
        bodies = {
            "gen_ai.user.message": {"content": "Weather in Paris?"},
            "gen_ai.assistant.message": {"tool_calls": calls},
            "gen_ai.tool.message": {"content": "rainy", "id": "call_1"},
            "gen_ai.choice": said,
        }
        if form == "text":
            bodies = {name: json.dumps(body) for name, body in bodies.items()}
        system = {"gen_ai.system": "openai"}
        records = [record(name, self.SPAN, body, **system) for name, body in bodies.items()]
        records[-1]["timeUnixNano"] = "20"
        other = {"traceId": "t1", "spanId": self.SPAN["spanId"], "body": {"stringValue": "a line of a program"}}
        unknown = record("gen_ai.user.message", {"traceId": "t9", "spanId": "1"}, {"content": "of no span"})
        found = read(tmp_path, records_of(records[-1], other, unknown), otlp(self.SPAN), records_of(*records[:-1]))
        assert found.unreadable == {"a message of a call whose span is in no file": 1}
        [row] = found.rows
        assert row["messages"] == [
            {"role": "user", "content": "Weather in Paris?"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "rainy", "tool_call_id": "call_1"},
            {"role": "assistant", "content": "It rains."},
        ]
        assert (row["reward"], row["terminated"]) == (1.0, reason == "stop")

    def test_all_messages_in_one(self, tmp_path):
        noted = {"gen_ai.input.messages": TEXT, "gen_ai.output.messages": [ANSWER], "gen_ai.conversation.id": "c1"}
        details = record("gen_ai.client.inference.operation.details", self.SPAN, **noted)
        [row] = read(tmp_path, otlp(self.SPAN), records_of(details)).rows
        assert [message["content"] for message in row["messages"]] == ["Weather in Paris?", "It rains."]

    def test_calls_whose_spans_are_in_no_file(self, tmp_path):
        span = {"traceId": "t1", "spanId": "7"}
        noted = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": TEXT, "gen_ai.output.messages": [ANSWER]}
        details = record("gen_ai.client.inference.operation.details", span, **noted)
        found = read(tmp_path, records_of(details, record(*score(1.0)[:1], span, **score(1.0)[1])))
        assert [row["reward"] for row in found.rows] == [1.0] and not found.unreadable

    def test_that_are_missing(self, tmp_path):
        [reason] = read(tmp_path, otlp(self.SPAN)).unreadable
        assert reason.endswith("records them; if they are in log records, name these files, too")


@pytest.mark.parametrize("times", [("01.5Z", "05Z"), ("01.500000Z", "05.250000Z"), ("01+00:00", "05.25+00:00")])
def test_seconds_with_any_number_of_digits(tmp_path, times):
    spans = [chat_span("t1", 1, TEXT, [ANSWER]), chat_span("t1", 2, [*TEXT, ANSWER, *TEXT], [ANSWER], [score(1)])]
    for span, time in zip(spans, times, strict=True):
        span["startTimeUnixNano"] = f"2026-05-01T10:00:{time}"
    found = read(tmp_path, otlp(*reversed(spans)))
    assert [len(row["messages"]) for row in found.rows] == [4] and not found.notes


@pytest.mark.parametrize("key", [1.5, None, True])
def test_names_of_attributes_that_are_no_text(tmp_path, key):
    call, other, no_call = (chat_span(trace, 1, TEXT, [ANSWER], [score(1)]) for trace in ("t1", "t2", "t3"))
    no_call |= {"attributes": [], "events": []}
    for span in (call, no_call):
        span["attributes"].append({"key": key, "value": {"stringValue": "x"}})
    found = read(tmp_path, otlp(call, other, no_call))
    assert len(found.rows) == 2 and not found.unreadable


def test_answers_that_were_cut(tmp_path):
    cut = {**ANSWER, "finish_reason": "length"}
    spans = [chat_span(f"t{i}", i, TEXT, [answer], [score(1)]) for i, answer in enumerate([cut, ANSWER])]
    found = read(tmp_path, otlp(*spans))
    assert [row["terminated"] for row in found.rows] == [False, True]
    assert found.rows[0]["messages"][-1] == {"role": "assistant", "content": "It rains."}


@pytest.mark.parametrize("bad", [3, None, {"events": [{"attributes": []}]}, {"attributes": [{"value": 1}]}])
def test_a_bad_span_loses_no_other_of_its_batch(tmp_path, bad):
    spans = [chat_span(f"t{i}", i, TEXT, [ANSWER]) for i in range(4)]
    batch = otlp(*spans[:2], bad, *spans[2:])
    batch["resourceSpans"] = [{"scopeSpans": 3}, *batch["resourceSpans"]]
    scores = [record("gen_ai.evaluation.result", span, **score(1.0)[1]) for span in spans]
    found = read(tmp_path, batch, records_of(*scores[:2], 3, *scores[2:]))
    assert len(found.rows) == 4
    assert found.unreadable == {"a span does not have OpenTelemetry's form": 3}


def test_snake_case(tmp_path):
    """As protobuf's `MessageToDict` writes it with `preserving_proto_field_name`."""
    batch = otlp(chat_span("t1", 1, TEXT, [ANSWER], [score(1)], **{"gen_ai.response.finish_reasons": ["length"]}))
    names = {"resourceSpans": "resource_spans", "scopeSpans": "scope_spans", "traceId": "trace_id"}
    names |= {f"{kind}Value": f"{kind}_value" for kind in ("array", "kvlist", "int", "string")}
    text = json.dumps(batch)
    for camel, snake in names.items():
        text = text.replace(f'"{camel}"', f'"{snake}"')
    [row] = read(tmp_path, json.loads(text)).rows
    assert (row["messages"][-1]["content"], row["reward"], row["terminated"]) == ("It rains.", 1.0, False)
