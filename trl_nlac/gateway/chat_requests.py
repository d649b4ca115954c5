# SPDX-License-Identifier: Apache-2.0

"""What clients of OpenAI's interfaces ask: read into chat messages."""

import json
import uuid
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from ..chat.message_reader import in_unicode, read_message, read_question
from ..chat.tool_calls import read_call, said
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

    @property
    def takes_several_calls(self) -> bool:
        """Whether an answer can call several tools."""
        return self.body.get("parallel_tool_calls") is not False


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
    """Write an answer as a message: its text up to one of `stop`, or else all of it and calls with new ids."""
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
        messages=_read(read_question, body.get("messages"), "messages"),
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
        messages=_read(read_question, messages, "input"),
        tools=[] if body.get("tool_choice") == "none" else tools,
        is_streamed=bool(body.get("stream")),
        body=body,
    )


def read_proposal(body: Any) -> Proposal:
    """Read the body of a request to judge an action: `messages`, `action` and possibly `tools`."""
    body = _object(body)
    action = body.get("action")
    action = {"role": "assistant", "content": action} if isinstance(action, str) else _object(action, "action")
    read = _read(read_message, {"role": "assistant", **action}, "action")
    if read["role"] != "assistant" or not (read["content"].strip() or read.get("tool_calls")):
        raise RequestRefused(
            "`action` must be text, or a message of the assistant that says or calls something.", "action"
        )
    tools = _tools(body.get("tools"), lambda tool: tool.get("function"))
    return Proposal(_read(read_question, body.get("messages"), "messages"), read, tools)


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
        found.append(json.loads(in_unicode(json.dumps({"type": "function", "function": known}, ensure_ascii=False))))
    return found


def _read(read: Callable[[Any], Any], value: Any, parameter: str) -> Any:
    """Read messages, or one; see [`~chat.message_reader`]."""
    try:
        return read(value)
    except ValueError as error:
        raise RequestRefused(f"`{parameter}` cannot be read: {error}.", parameter) from error


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


def what_followed(
    messages: Sequence[Message], reply: Message, stop: tuple[str, ...], given: Set[str]
) -> tuple[list[Message], bool] | None:
    """
    Find what a client added to a reply that it was given, in messages of a history that begin with an echo of the
    reply. Its calls can come back one by one, each before its result, and some of them not at all. `given` has the ids
    of all calls that the client was given: an echo with those of another reply is none.

    Return the results of the reply's calls (empty for one that did not come back) and the messages before the next of
    the assistant, and whether they continue the whole reply; `None` if there is no echo.
    """
    calls, rest = reply.get("tool_calls") or [], list(messages)
    places = {call["id"]: i for i, call in enumerate(calls)}
    echoed: dict[int, tuple[dict[str, Any], str]] = {}  # calls, and their results
    texts = []
    while rest and rest[0]["role"] == "assistant" and (calls or not texts):
        own = rest[0].get("tool_calls") or []
        ids = [call.get("id") for call in own]
        found = [places[i] for i in ids if i in places]
        if not found and not given.intersection(ids):  # the client has left them out, or has its own
            next_ones = calls[len(echoed) : len(echoed) + len(own)]
            if list(map(read_call, next_ones)) == list(map(read_call, own)):
                found = list(range(len(echoed), len(echoed) + len(own)))
        if bool(own) != bool(calls) or len(found) != len(own) or echoed.keys() & found or len(rest) <= len(own):
            break
        texts.append(rest.pop(0)["content"])
        for place, call in zip(found, own, strict=True):
            echoed[place] = call, rest.pop(0)["content"]
    echo = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    if echoed:
        echo["tool_calls"] = [echoed[place][0] for place in sorted(echoed)]
    is_whole = is_echo(echo, reply, stop)
    if not texts or not (echoed or is_whole):
        return None
    end = next((i for i, message in enumerate(rest) if message["role"] == "assistant"), len(rest))
    results = [{"role": "tool", "content": echoed[i][1] if i in echoed else ""} for i in range(len(calls))]
    return [*results, *rest[:end]], is_whole and end == len(rest)
