# SPDX-License-Identifier: Apache-2.0

"""
OpenTelemetry spans of generative AI: attributes, events and log records of its semantic conventions, in OTLP's JSON,
or as an SDK prints spans. https://github.com/open-telemetry/semantic-conventions-genai

Messages can also be attributes of OpenInference (`llm.input_messages.0.message.role`) or of OpenLLMetry
(`gen_ai.prompt.0.role`). Calls of a model in other conventions are counted.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..gateway.parsed_json import parse_json
from ..types import Message
from .calls import ModelCall, add_conversations, read_each
from .logged import LoggedConversations, UnreadableError, listed, read_outcome


_OPERATIONS = ("chat", "generate_content", "text_completion")
# Where OpenInference and OpenLLMetry have the messages, the answers and the tools of a call.
_INDEXED = (("llm.input_messages.", "gen_ai.prompt."), ("llm.output_messages.", "gen_ai.completion."))
_INDEXED_TOOLS = ("llm.tools.", "llm.request.functions.")
_MODELS = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name", "ai.model.id")
_KINDS = ("llm", "chat", "chat_model", "completion", "generation")
_CONVERSATION = "gen_ai.conversation.id"
_EVALUATION = "gen_ai.evaluation.result"
_DETAILS = "gen_ai.client.inference.operation.details"
# Events of the conventions up to 1.36, one for each message.
_MESSAGE_EVENTS = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_CHOICE = "gen_ai.choice"
_CUT = ("length", "max_tokens", "MAX_TOKENS")
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError)  # what reading a value of another form raises
_TIME = re.compile(r"(.*?)(?:\.(\d+))?(?:Z|[+-]\d\d:?\d\d)?", re.DOTALL)
_Scores = defaultdict[str, defaultdict[str | int, set[float]]]
_NO_SPAN = "a span does not have OpenTelemetry's form"


@dataclass
class _Span:
    """A span; or a log record, with the ids of its span and itself as the only event."""

    trace: str
    id: str
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
    Their outcome is the score of an event `gen_ai.evaluation.result`, or an attribute of a span. One that names no
    conversation is that of all conversations of its trace. `outcome` is the `gen_ai.evaluation.name`, or the
    attribute; if `None`, the only evaluation.
    """
    spans = _joined(values, found)
    conversations: dict[str, set[str]] = defaultdict(set)  # of each trace
    for span in spans:
        if own := _own_conversation(span):
            conversations[span.trace].add(own)
    outcomes = _outcomes(spans, conversations, outcome, found)
    calls = []
    for span in sorted(spans, key=_time):
        if not _is_call(noted := _noted(span)):
            if _is_other_call(noted):
                found.refuse(
                    "the call of a model is in another convention than those of OpenTelemetry for generative "
                    "AI, OpenInference and OpenLLMetry"
                )
            is_record = not span.attributes  # one that stayed alone; a span that is no call can have such events, too
            if is_record and any(event in _MESSAGE_EVENTS or event == _CHOICE for event, _ in span.events):
                found.refuse("a message of a call whose span is in no file")
            continue
        try:
            calls.append(_call(span, conversations[span.trace], outcomes))
        except _MALFORMED as error:
            found.refuse(error if isinstance(error, UnreadableError) else "a call's messages have an unknown form")
    add_conversations(calls, found)


def _joined(values: Iterable[Any], found: LoggedConversations) -> list[_Span]:
    """Read the spans of values. A log record becomes an event of its span, or, where there is none, stays alone."""
    spans, records = [], []
    for value in values:
        if not is_span(value):
            found.refuse("it is no span")
            continue
        alone = [value] if "attributes" in value else []
        in_batch = _below(value, ("resourceSpans", "scopeSpans", "spans"), found)
        spans += _readable(_span, found.shallow([*alone, *in_batch]), found)
        in_batch = _below(value, ("resourceLogs", "scopeLogs", "logRecords"), found)
        records += _readable(_record, found.shallow(in_batch), found)
    by_id = {(span.trace, span.id): span for span in spans if span.id}
    for record in sorted(records, key=_time):
        span = by_id.get((record.trace, record.id))
        if span is None:
            spans.append(record)
        else:
            span.events += record.events
    return spans


def _below(value: Any, names: tuple[str, ...], found: LoggedConversations) -> Iterator[Any]:
    """Take the items out of lists within lists, by their names, and count what has no such list."""
    if not names:
        yield value
        return
    items = (_get(value, names[0]) or []) if isinstance(value, dict) else None
    if not isinstance(items, list):
        found.refuse(_NO_SPAN)
        return
    for item in items:
        yield from _below(item, names[1:], found)


def _readable(read: Callable[[Any], _Span], items: Iterable[Any], found: LoggedConversations) -> Iterator[_Span]:
    """Read items, and count those that cannot be read."""
    for item in items:
        try:
            yield read(item)
        except _MALFORMED:
            found.refuse(_NO_SPAN)


def _span(value: dict[str, Any]) -> _Span:
    context = value.get("context") or value
    events = [(event["name"], _attributes(event.get("attributes"))) for event in value.get("events") or []]
    return _Span(*_ids(context), _start(value), _attributes(value.get("attributes")), events)


def _record(value: dict[str, Any]) -> _Span:
    attributes, body = _attributes(value.get("attributes")), _any_value(value.get("body"))
    attributes = {**attributes, **body} if isinstance(body, dict) else {"body": body, **attributes}
    name = _get(value, "eventName") or attributes.get("event.name")
    return _Span(*_ids(value), _start(value), {}, [(name, attributes)])


def _get(value: dict[str, Any], name: str) -> Any:
    """A field of OTLP, in camel case or in snake case."""
    given = value.get(name)
    return value.get(re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)) if given is None else given


def _ids(value: dict[str, Any]) -> tuple[str, str]:
    """The ids of a trace and of a span in it."""
    return str(_get(value, "traceId") or ""), str(_get(value, "spanId") or "")


def _start(value: dict[str, Any]) -> str:
    times = (_get(value, name) for name in ("startTimeUnixNano", "startTime", "timeUnixNano"))
    return str(next((time for time in times if time is not None), ""))


def _time(span: _Span) -> tuple[int, str, str]:
    """What spans are sorted by: numbers in text, or dates, whose seconds can have any number of digits."""
    whole, fraction = _TIME.fullmatch(span.start).groups("")
    return len(whole), whole, fraction


def _attributes(value: Any) -> dict[str, Any]:
    """Read attributes: an object, or OTLP's list of keys with typed values."""
    if isinstance(value, list):
        value = {item["key"]: _any_value(item.get("value")) for item in value}
    return {str(key): of for key, of in (value or {}).items()}


def _any_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if (array := _get(value, "arrayValue")) is not None:
        return [_any_value(item) for item in array.get("values") or []]
    if (items := _get(value, "kvlistValue")) is not None:
        return _attributes(items.get("values") or [])
    if (number := _get(value, "intValue")) is not None:
        return int(number)
    return next(iter(value.values()), None)


def _outcomes(
    spans: list[_Span], conversations: dict[str, set[str]], name: str | None, found: LoggedConversations
) -> dict[str | int, float]:
    """
    Find the outcome of each conversation, of the calls of each trace that belong to none, and of each span (by its
    `id`). If there are several evaluations, a name must say which is the outcome. What has several outcomes has none.
    """
    scores: _Scores = defaultdict(lambda: defaultdict(set))
    for span in spans:
        own = _own_conversation(span)
        of_span = [id(span), *([own] if own else [*conversations[span.trace], span.trace])]
        for event, attributes in span.events:
            if event == _EVALUATION:
                label = attributes.get("gen_ai.evaluation.score.label")
                value = attributes.get("gen_ai.evaluation.score.value", label)
                evaluation = attributes.get("gen_ai.evaluation.name")
                named = attributes.get(_CONVERSATION)
                if isinstance(evaluation, str | None):
                    _note(scores, evaluation or "", [str(named)] if named else of_span, value, found)
        if name is not None and name in span.attributes:
            _note(scores, name, of_span, span.attributes[name], found)
    if name is None and len(scores) > 1:
        raise ValueError(f"the spans have several evaluations, {listed(scores)}: choose one with --outcome")
    chosen = scores[name] if name is not None else next(iter(scores.values()), {})
    several = [group for group, values in chosen.items() if len(values) > 1]
    if several:
        found.notes["several outcomes of one conversation or trace: only those of its calls' own spans count"] += sum(
            isinstance(group, str) for group in several
        )
    return {group: next(iter(values)) for group, values in chosen.items() if len(values) == 1}


def _note(scores: _Scores, name: str, groups: list[str | int], value: Any, found: LoggedConversations) -> None:
    try:
        read = read_outcome(value)
    except UnreadableError:
        found.notes["an evaluation is neither a number nor a word such as pass or fail"] += 1
        return
    if read is not None:
        for group in groups:
            scores[name][group].add(read)


def _own_conversation(span: _Span) -> str:
    """The conversation that a span or one of its messages names. Evaluations can be of another one."""
    places = [span.attributes, *(attributes for event, attributes in span.events if event != _EVALUATION)]
    return next((str(place[_CONVERSATION]) for place in places if place.get(_CONVERSATION)), "")


def _noted(span: _Span) -> dict[str, Any]:
    """The attributes of a call: its span's, and those of the event with its details, which can be in a log alone."""
    details = next((attributes for event, attributes in span.events if event == _DETAILS), {})
    return {**details, **span.attributes}


def _is_call(noted: dict[str, Any]) -> bool:
    """Whether attributes are those of a call in a convention that is read."""
    if "gen_ai.operation.name" in noted:
        return noted["gen_ai.operation.name"] in _OPERATIONS
    is_named = noted.get("openinference.span.kind") == "LLM" or noted.get("llm.request.type") in ("chat", "completion")
    return is_named or any(name.startswith(_INDEXED[1]) for name in noted)


def _is_other_call(noted: dict[str, Any]) -> bool:
    """Whether attributes name a model, or a kind of span that is a call of one."""
    if "gen_ai.operation.name" in noted:  # an embedding, an agent, a tool
        return False
    kinds = (value for name, value in noted.items() if re.search(r"kind$|type$", name, re.IGNORECASE))
    is_kind = any(isinstance(kind, str) and kind.strip('"').lower() in _KINDS for kind in kinds)
    return is_kind or any(name in noted for name in _MODELS)


def _call(span: _Span, conversations: set[str], outcomes: dict[str | int, float]) -> ModelCall:
    """Read a call; one that names no conversation belongs to the only one of its trace, or else to the trace."""
    if span.attributes.get("error.type"):
        raise UnreadableError("the call of a model failed")
    noted = _noted(span)
    messages, answers = _of_attributes(noted)
    if not answers:
        messages, answers = _of_events(span.events)
    if not answers:
        messages, answers = ([_of_indexed(one) for one in _indexed(noted, names)] for names in _INDEXED)
    if not answers:
        raise UnreadableError(
            "the call of a model has no messages: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT records them; "
            "if they are in log records, name these files, too"
        )
    if len(answers) > 1:
        raise UnreadableError(f"an answer has {len(answers)} choices, and which one was used is not logged")
    reasons = [*(noted.get("gen_ai.response.finish_reasons") or []), answers[0].get("finish_reason")]
    only = next(iter(conversations)) if len(conversations) == 1 else span.trace
    group = _own_conversation(span) or only
    return ModelCall(
        *read_each(messages, answers[0]),
        _tools(noted.get("gen_ai.tool.definitions") or _indexed(noted, _INDEXED_TOOLS)),
        group,
        outcomes.get(id(span), outcomes.get(group)),
        any(reason in _CUT for reason in reasons),
    )


def _of_attributes(attributes: dict[str, Any]) -> tuple[list[Message], list[Message]]:
    """Read the messages, and the answers with their `finish_reason`, from attributes: structures, or JSON text."""
    instructions = _parsed(attributes.get("gen_ai.system_instructions"))
    before = [message for given in _parsed(attributes.get("gen_ai.input.messages")) for message in _of_parts(given)]
    if instructions:
        before = [*_of_parts({"role": "system", "parts": instructions}), *before]
    answers = [
        {**message, "finish_reason": given.get("finish_reason")}
        for given in _parsed(attributes.get("gen_ai.output.messages"))
        for message in _of_parts(given)
    ]
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
    """Read the messages, and the answers with their `finish_reason`, from events, one for each."""
    before, answers = [], []
    for name, attributes in events:
        if name != _CHOICE and name not in _MESSAGE_EVENTS:
            continue
        body = {**attributes, **_parsed(attributes.get("body"), {})}
        said = _parsed(body.get("message"), {}) if name == _CHOICE else body
        message = {"role": _MESSAGE_EVENTS.get(name, "assistant"), "content": said.get("content")}
        if said.get("tool_calls"):
            message["tool_calls"] = _parsed(said["tool_calls"])
        if name == _CHOICE:
            answers.append({**message, "finish_reason": body.get("finish_reason")})
        else:
            before.append({**message, "tool_call_id": body.get("id")} if message["role"] == "tool" else message)
    return before, answers


def _indexed(attributes: dict[str, Any], prefixes: tuple[str, ...]) -> list[Any]:
    """Read a list whose items' parts are attributes of their own: `prefix.0.role`, `prefix.1.calls.0.name`."""
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        for prefix in filter(name.startswith, prefixes):
            *way, last = name.removeprefix(prefix).split(".")
            part = tree
            for key in way:
                part = part.setdefault(key, {})
            part[last] = value

    def with_lists(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        read = {key: with_lists(part) for key, part in value.items()}
        return [read[key] for key in sorted(read, key=int)] if all(key.isdecimal() for key in read) else read

    return with_lists(tree) if tree else []


def _of_indexed(given: dict[str, Any]) -> Message:
    """Read a message of OpenInference or of OpenLLMetry."""
    given = given.get("message", given)
    calls = []
    for call in given.get("tool_calls", []):
        call = call.get("tool_call", call)
        function = call.get("function", call)
        function = {"name": function.get("name"), "arguments": function.get("arguments")}
        calls.append({"id": call.get("id"), "type": "function", "function": function})
    parts = [part["message_content"] for part in given.get("contents", [])]
    return {**given, "content": parts or given.get("content"), "tool_calls": calls or None}


def _parsed(value: Any, default: Any = ()) -> Any:
    """A structure of an attribute, which can be JSON text."""
    if isinstance(value, str):
        try:
            return parse_json(value)
        except ValueError as error:
            raise UnreadableError("the messages of a call are not JSON: were they cut?") from error
    return default if value is None else value


def _tools(value: Any) -> list[dict[str, Any]]:
    tools = [_parsed(tool.get("tool", tool).get("json_schema", tool)) for tool in _parsed(value)]
    tools = [{**tool, "parameters": _parsed(tool["parameters"])} if tool.get("parameters") else tool for tool in tools]
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
