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

"""
OpenTelemetry spans of generative AI: attributes and events of its semantic conventions, in OTLP's JSON, or as an SDK
prints spans. https://github.com/open-telemetry/semantic-conventions-genai
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..types import Message
from .base import LoggedConversations, UnreadableError, read_outcome
from .calls import ModelCall, add_conversations
from .messages import read_messages


_OPERATIONS = ("chat", "generate_content", "text_completion")
_EVALUATION = "gen_ai.evaluation.result"
_DETAILS = "gen_ai.client.inference.operation.details"
# Events of the conventions up to 1.36, one for each message.
_MESSAGE_EVENTS = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_CHOICE = "gen_ai.choice"
_CUT = ("length", "max_tokens", "MAX_TOKENS")


@dataclass
class _Span:
    trace: str
    start: str
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


def is_span(value: Any) -> bool:
    """Whether a value is a span, a batch of spans or a batch of log records."""
    if not isinstance(value, dict):
        return False
    if any(name in value for name in ("resourceSpans", "resourceLogs", "resource_spans", "resource_logs")):
        return True
    return "attributes" in value and any(name in value for name in ("context", "trace_id", "traceId"))


def read_spans(values: Iterable[Any], outcome: str | None, found: LoggedConversations) -> None:
    """
    Read spans of calls of models, and join those of one conversation (`gen_ai.conversation.id`, or else the trace).
    Their outcome is the score of an event `gen_ai.evaluation.result`, or an attribute of any span of the trace.

    Args:
        values (`Iterable[Any]`):
            Values of the files.
        outcome (`str`, *optional*):
            The `gen_ai.evaluation.name`, or the attribute, that is the outcome. If `None`, the only evaluation.
        found ([`~log_formats.base.LoggedConversations`]):
            Where to add them.
    """
    spans = []
    for value in values:
        try:
            if not is_span(value):
                raise UnreadableError("it is no span")
            spans += _spans(value)
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # of any shape
            found.refuse(error if isinstance(error, UnreadableError) else "a span does not have OpenTelemetry's form")
    outcomes = _outcomes(spans, outcome, found)
    calls = []
    for span in sorted(spans, key=lambda span: (len(span.start), span.start)):  # numbers in text, or dates
        if span.attributes.get("gen_ai.operation.name") not in _OPERATIONS:
            continue
        try:
            calls.append(_call(span, outcomes, found))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            found.refuse(error if isinstance(error, UnreadableError) else "a call's messages have an unknown form")
    add_conversations(calls, found)


def _spans(value: dict[str, Any]) -> Iterator[_Span]:
    """Take the spans out of a value; a log record becomes the event of a span without anything else."""
    for batch in value.get("resourceSpans") or value.get("resource_spans") or []:
        for scope in batch.get("scopeSpans") or batch.get("scope_spans") or []:
            yield from map(_span, scope["spans"])
    for batch in value.get("resourceLogs") or value.get("resource_logs") or []:
        for scope in batch.get("scopeLogs") or batch.get("scope_logs") or []:
            for record in scope.get("logRecords") or scope.get("log_records") or []:
                attributes = _attributes(record.get("attributes"))
                name = record.get("eventName") or record.get("event_name") or attributes.get("event.name")
                yield _Span(_hex(record, "trace"), _start(record), {}, [(name, attributes)])
    if "attributes" in value:
        yield _span(value)


def _span(value: dict[str, Any]) -> _Span:
    context = value.get("context") or value
    events = [(event["name"], _attributes(event.get("attributes"))) for event in value.get("events") or []]
    return _Span(_hex(context, "trace"), _start(value), _attributes(value.get("attributes")), events)


def _hex(value: dict[str, Any], name: str) -> str:
    return str(value.get(f"{name}Id") or value.get(f"{name}_id") or "")


def _start(value: dict[str, Any]) -> str:
    names = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime", "timeUnixNano")
    return str(next((value[name] for name in names if value.get(name) is not None), ""))


def _attributes(value: Any) -> dict[str, Any]:
    """Read attributes: an object, or OTLP's list of keys with typed values."""
    if isinstance(value, list):
        return {item["key"]: _any_value(item.get("value")) for item in value}
    return dict(value or {})


def _any_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "arrayValue" in value:
        return [_any_value(item) for item in value["arrayValue"].get("values") or []]
    if "kvlistValue" in value:
        return {item["key"]: _any_value(item.get("value")) for item in value["kvlistValue"].get("values") or []}
    if "intValue" in value:
        return int(value["intValue"])
    return next(iter(value.values()), None)


def _outcomes(spans: list[_Span], name: str | None, found: LoggedConversations) -> dict[str, float]:
    """
    Find the outcome of each conversation.

    Raises:
        ValueError: If there are several evaluations, and no name says which is the outcome.
    """
    groups = {span.trace: _group(span) for span in spans if "gen_ai.conversation.id" in span.attributes}
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for span in spans:
        group = groups.get(span.trace, span.trace)
        for event, attributes in span.events:
            if event == _EVALUATION:
                label = attributes.get("gen_ai.evaluation.score.label")
                value = attributes.get("gen_ai.evaluation.score.value", label)
                evaluation = attributes.get("gen_ai.evaluation.name")
                if isinstance(evaluation, str | None):
                    _note(scores, evaluation or "", group, value, found)
        if name is not None and name in span.attributes:
            _note(scores, name, group, span.attributes[name], found)
    if name is not None:
        return scores[name]
    if len(scores) > 1:
        raise ValueError(f"the spans have several evaluations, {', '.join(scores)}: choose one with --outcome")
    return next(iter(scores.values()), {})


def _note(scores: dict[str, dict[str, float]], name: str, group: str, value: Any, found: LoggedConversations) -> None:
    try:
        read = read_outcome(value)
    except UnreadableError:
        found.notes["an evaluation is neither a number nor a word such as pass or fail"] += 1
        return
    if read is not None:
        scores[name][group] = read


def _group(span: _Span) -> str:
    return str(span.attributes.get("gen_ai.conversation.id") or span.trace)


def _call(span: _Span, outcomes: dict[str, float], found: LoggedConversations) -> ModelCall:
    if span.attributes.get("error.type"):
        raise UnreadableError("the call of a model failed")
    details = next((attributes for event, attributes in span.events if event == _DETAILS), {})
    noted = {**details, **span.attributes}
    messages, answers = _of_attributes(noted)
    if not answers:
        messages, answers = _of_events(span.events)
    if not answers:
        raise UnreadableError(
            "the call of a model has no messages: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT records them"
        )
    if len(answers) > 1:
        raise UnreadableError(f"an answer has {len(answers)} choices, and which one was used is not logged")
    reasons = noted.get("gen_ai.response.finish_reasons") or []
    group = _group(span)
    return ModelCall(
        read_messages(messages, found),
        answers[0],
        _tools(noted.get("gen_ai.tool.definitions")),
        group,
        outcomes.get(group),
        any(reason in _CUT for reason in reasons),
    )


def _of_attributes(attributes: dict[str, Any]) -> tuple[list[Message], list[Message]]:
    """Read the messages and the answers from attributes, in which they are structures, or JSON text."""
    instructions = _parsed(attributes.get("gen_ai.system_instructions"))
    before = [message for given in _parsed(attributes.get("gen_ai.input.messages")) for message in _of_parts(given)]
    if instructions:
        before = [*_of_parts({"role": "system", "parts": instructions}), *before]
    answers = [message for given in _parsed(attributes.get("gen_ai.output.messages")) for message in _of_parts(given)]
    return before, answers


def _of_parts(given: dict[str, Any]) -> list[Message]:
    """Read a message of parts; one with results of tools becomes one for each, and one of the user with its text."""
    if not isinstance(given, dict):
        raise UnreadableError("a call's messages have an unknown form")
    if "parts" not in given:
        return [given]
    texts, thoughts, calls, results = [], [], [], []
    for part in given["parts"]:
        kind = part["type"]
        if kind == "text":
            texts.append(part["content"])
        elif kind == "reasoning":
            thoughts.append(part["content"])
        elif kind == "tool_call":
            arguments = part.get("arguments")
            arguments = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            function = {"name": part["name"], "arguments": arguments}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif kind == "tool_call_response":
            response = part.get("response", part.get("result"))
            text = response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)
            results.append({"role": "tool", "tool_call_id": part.get("id"), "content": text})
        else:
            raise UnreadableError(f"a message has a part of the type {kind!r}, which is not text")
    if results:
        if calls or thoughts or given["role"] == "assistant":
            raise UnreadableError("a message of the assistant has the results of tools")
        return [*results, {"role": "user", "content": "\n\n".join(texts)}] if texts else results
    message = {"role": given["role"], "content": "\n\n".join(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning_content"] = "\n\n".join(thoughts)
    return [{**message, "tool_calls": calls} if calls else message]


def _of_events(events: list[tuple[str, dict[str, Any]]]) -> tuple[list[Message], list[Message]]:
    """Read the messages and the answers from events, one for each."""
    before, answers = [], []
    for name, attributes in events:
        if name in _MESSAGE_EVENTS:
            body = {**attributes, **_parsed(attributes.get("body"), {})}
            message = {"role": _MESSAGE_EVENTS[name], "content": body.get("content")}
            if body.get("tool_calls"):
                message["tool_calls"] = _parsed(body["tool_calls"])
            before.append({**message, "tool_call_id": body.get("id")} if message["role"] == "tool" else message)
        elif name == _CHOICE:
            body = {**attributes, **_parsed(attributes.get("body"), {})}
            said = _parsed(body.get("message"), {})
            answers.append({"role": "assistant", "content": said.get("content"), **_calls_of(said)})
    return before, answers


def _calls_of(said: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": _parsed(said["tool_calls"])} if said.get("tool_calls") else {}


def _parsed(value: Any, default: Any = ()) -> Any:
    """A structure of an attribute, which can be JSON text."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UnreadableError("the messages of a call are not JSON: were they cut?") from error
    return default if value is None else value


def _tools(value: Any) -> list[dict[str, Any]]:
    tools = _parsed(value)
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
