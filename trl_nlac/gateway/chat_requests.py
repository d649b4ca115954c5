# SPDX-License-Identifier: Apache-2.0

"""What clients of OpenAI's interfaces ask: read into chat messages."""

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..chat.tool_calls import read_call, results_in_order, said
from ..types import Message


MODEL = "policy"  # the name under which the served model is listed


class RequestRefused(Exception):
    """
    A request cannot be answered: why, and what to do, with the parameter of the request that is to blame. OpenAI's
    clients try again after the `status` 408, 409, 429 and those from 500 on.
    """

    def __init__(self, message: str, parameter: str | None = None, status: int = 400):
        super().__init__(message)
        self.parameter = parameter
        self.status = status

    @property
    def body(self) -> dict[str, Any]:
        """The answer, in OpenAI's form."""
        kind = "authentication_error" if self.status == 401 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.parameter, "code": None}}


@dataclass(frozen=True)
class Question:
    """What a client asks the model."""

    # the conversation as chat messages, whose contents are text: at most one of the system, at the beginning, and
    # results of tools in the order of their calls. It ends with a message of the user or of a tool.
    messages: list[Message]
    tools: list[dict[str, Any]]  # JSON schemas of the tools that the answer can call, in the form of chat completions
    stop: tuple[str, ...] = ()  # texts before which an answer ends
    is_streamed: bool = False  # whether the answer is sent as events
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """An action that a client proposes, to be judged."""

    messages: list[Message]
    action: Message
    tools: list[dict[str, Any]]  # JSON schemas of the tools that it can call


@dataclass(frozen=True)
class Reply:
    """An answer to a [`Question`]."""

    message: Message
    num_prompt_tokens: int
    num_tokens: int  # number of tokens of the answer
    finished: bool = True  # whether the answer ended before the limit of its tokens


def reply_message(content: str, calls: Sequence[tuple[str, dict[str, Any]]], stop: tuple[str, ...]) -> Message:
    """
    Write an answer as a message: its text up to the first text of `stop`, or else all of it and the calls after it,
    with ids of their own.
    """
    for text in stop:
        content, is_stopped, _ = content.partition(text)
        calls = [] if is_stopped else calls
    message: Message = {"role": "assistant", "content": content if content or not calls else None}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for name, arguments in calls
        ]
    return message


# Reading


def read_chat(body: Any) -> Question:
    """Read the body of a request for a chat completion. What cannot be read, or is not offered, is refused."""
    body = _object(body)
    _refuse_others(body)
    format_ = body.get("response_format")
    if format_ is not None and _object(format_, "response_format").get("type") != "text":
        raise RequestRefused("`response_format` is not offered: answers are text or tool calls.", "response_format")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise RequestRefused("`stop` must be text, or a list of texts.", "stop")
    tools = _tools(body.get("tools"), lambda tool: tool.get("function"))
    return Question(
        messages=_checked_messages(body.get("messages"), "messages"),
        tools=[] if body.get("tool_choice") == "none" else tools,
        stop=tuple(stop),
        is_streamed=bool(body.get("stream")),
        body=body,
    )


def read_response(body: Any) -> Question:
    """Read the body of a request of the Responses interface, as [`read_chat`]."""
    body = _object(body)
    _refuse_others(body)
    for name in ("previous_response_id", "conversation", "prompt"):
        if body.get(name) is not None:
            raise RequestRefused(f"`{name}` is not offered, as nothing is stored: send the whole conversation.", name)
    if body.get("background"):
        raise RequestRefused("`background` is not offered.", "background")
    text = body.get("text")
    format_ = _object(text, "text").get("format") if text is not None else None
    if format_ is not None and _object(format_, "text").get("type") != "text":
        raise RequestRefused("A `format` of `text` is not offered: answers are text or tool calls.", "text")
    items = body.get("input")
    items = [{"role": "user", "content": items}] if isinstance(items, str) else items
    if not isinstance(items, list):
        raise RequestRefused("`input` must be text, or a list of items.", "input")
    messages = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    for item in items:
        _add_item(messages, _object(item, "input"))
    tools = _tools(body.get("tools"), lambda tool: tool if tool.get("type") == "function" else None)
    return Question(
        messages=_checked_messages(messages, "input"),
        tools=[] if body.get("tool_choice") == "none" else tools,
        is_streamed=bool(body.get("stream")),
        body=body,
    )


def read_proposal(body: Any) -> Proposal:
    """Read the body of a request to judge an action: `messages`, `action` and possibly `tools`."""
    body = _object(body)
    action = body.get("action")
    action = {"role": "assistant", "content": action} if isinstance(action, str) else _object(action, "action")
    read = _message({"role": "assistant", **action}, "action")
    if read["role"] != "assistant" or not (read["content"].strip() or read.get("tool_calls")):
        raise RequestRefused(
            "`action` must be text, or a message of the assistant that says or calls something.", "action"
        )
    tools = _tools(body.get("tools"), lambda tool: tool.get("function"))
    return Proposal(_checked_messages(body.get("messages"), "messages"), read, tools)


def _add_item(messages: list[Message], item: dict[str, Any]) -> None:
    """Add an item of the Responses interface to messages."""
    kind = item.get("type") or "message"
    if kind == "reasoning":
        return
    if kind == "function_call_output":
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        return
    if kind not in ("message", "function_call"):
        raise RequestRefused(f"An item of the type {kind!r} is not offered.", "input")
    if kind == "message":
        messages.append({"role": item.get("role"), "content": item.get("content")})
        return
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _refuse_others(body: dict[str, Any]) -> None:
    """Refuse what would otherwise be missing in the answer."""
    if body.get("n") not in (None, 1):
        raise RequestRefused(f"`n={body['n']}` is not offered: there is one answer to a request.", "n")
    for name in ("logprobs", "top_logprobs", "functions", "function_call", "audio"):
        if body.get(name):
            raise RequestRefused(f"`{name}` is not offered.", name)


def _tools(tools: Any, function_of: Callable[[dict[str, Any]], dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Read tools: functions with a name, and possibly a description and a schema of their parameters."""
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise RequestRefused("`tools` must be a list.", "tools")
    found = []
    for tool in tools:
        function = function_of(_object(tool, "tools"))
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise RequestRefused(
                f"A tool of the type {tool.get('type')!r} is not offered: tools are functions with a name.", "tools"
            )
        known = {name: function[name] for name in ("name", "description", "parameters") if function.get(name)}
        found.append(_in_unicode({"type": "function", "function": known}))
    return found


def _checked_messages(messages: Any, parameter: str) -> list[Message]:
    """Read messages; see [`Question`]."""
    if not isinstance(messages, list) or not messages:
        raise RequestRefused(f"`{parameter}` must be a list of at least one message.", parameter)
    read = [_message(_object(message, parameter), parameter) for message in messages]
    system = []
    while read and read[0]["role"] == "system":
        system.append(read.pop(0)["content"])
    if not read and system:
        read.append({"role": "user", "content": system.pop()})
    read = [{**message, "role": "user"} if message["role"] == "system" else message for message in read]
    if not read or read[-1]["role"] == "assistant":
        raise RequestRefused(
            f"`{parameter}` must end with a message of the user or the result of a tool, which is answered.", parameter
        )
    if read[0]["role"] != "user":
        raise RequestRefused(f"The first message of `{parameter}`, after the system's, must be the user's.", parameter)
    read = _with_ordered_results(_joined(read), parameter)
    return [{"role": "system", "content": "\n\n".join(system)}, *read] if system else read


def _joined(messages: list[Message]) -> list[Message]:
    """Join neighbouring messages of the assistant, which are one turn of a chat template."""
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1]["role"] == message["role"] == "assistant":
            last = joined.pop()
            contents = [part["content"] for part in (last, message) if part["content"]]
            calls = [*last.get("tool_calls", []), *message.get("tool_calls", [])]
            message = {**last, **message, "content": "\n".join(contents), **({"tool_calls": calls} if calls else {})}
        joined.append(message)
    return joined


def _message(message: dict[str, Any], parameter: str) -> Message:
    role = "system" if message.get("role") == "developer" else message.get("role")
    if role not in ("system", "user", "assistant", "tool"):
        raise RequestRefused(f"The role {message.get('role')!r} of a message is not offered.", parameter)
    read: Message = {"role": role, "content": _text(message.get("content"), parameter)}
    if role == "tool" and message.get("tool_call_id"):
        read["tool_call_id"] = str(message["tool_call_id"])
    calls = message.get("tool_calls")
    if calls and role == "assistant":
        if not isinstance(calls, list) or any(read_call(call) is None for call in calls):
            raise RequestRefused(
                "A tool call has no name, or its arguments are not the JSON text of an object.", parameter
            )
        read["tool_calls"] = [
            {
                "id": str(call.get("id")),
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for call, (name, arguments) in ((call, read_call(call)) for call in calls)
        ]
    return _in_unicode(read)


def _with_ordered_results(messages: list[Message], parameter: str) -> list[Message]:
    """Put the results of tools into the order of their calls."""
    ordered: list[Message] = []
    i = 0
    while i < len(messages):
        calls = messages[i].get("tool_calls") or []
        results = []
        ordered.append(messages[i])
        i += 1
        while i < len(messages) and messages[i]["role"] == "tool":
            results.append(messages[i])
            i += 1
        if calls or results:
            try:
                ordered += results_in_order(calls, results)
            except ValueError as error:
                raise RequestRefused(f"Results of tools do not belong to calls: {error}.", parameter) from error
    return ordered


def _text(content: Any, parameter: str) -> str:
    """The text of a message: text, or a list of parts that are."""
    if content is None:
        return ""
    if isinstance(content, list):
        parts = []
        for part in content:
            text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
            if not isinstance(text, str):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise RequestRefused(f"A part of the type {kind!r} is not offered: messages are text.", parameter)
            parts.append(text)
        content = "\n".join(parts)
    if not isinstance(content, str):
        raise RequestRefused(f"The content of a message is {type(content).__name__}, expected text.", parameter)
    return content


def _in_unicode(value: dict[str, Any]) -> dict[str, Any]:
    """Copy a value of JSON. Half characters, which JSON can hold and no tokenizer takes, become marks."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _object(value: Any, parameter: str | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        what = f"An entry of `{parameter}`" if parameter else "The body"
        raise RequestRefused(f"{what} must be a JSON object.", parameter)
    return value


# Conversations


def is_echo(message: Message, reply: Message, stop: tuple[str, ...]) -> bool:
    """Whether a message of a history is a reply that was given; it can have a text of `stop` at its end again."""
    if message["role"] != "assistant" or said(message)[2] != said(reply)[2]:
        return False
    given, echoed = said(reply)[1], said(message)[1]
    return given in (echoed, *(echoed.removesuffix(text.strip()).strip() for text in stop))
