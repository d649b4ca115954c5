# SPDX-License-Identifier: Apache-2.0

"""Logs of OpenAI's chat interface: whole conversations, or requests with their answers."""

from collections.abc import Iterable
from typing import Any

from ..gateway.parsed_json import parse_json
from .calls import ModelCall, add_conversations, read_each
from .logged import LoggedConversations, UnreadableError, find_outcome


# The first that a request has, at any place: a `run_id` can be of one request alone.
_GROUPS = ("conversation_id", "session_id", "thread_id", "trace_id", "run_id")


def is_conversation(value: Any) -> bool:
    """Whether a value of a log is a conversation, with an outcome or without."""
    return isinstance(value, dict) and "messages" in value and not _response(value)


def is_request(value: Any) -> bool:
    """Whether a value of a log is a request with its answer."""
    return isinstance(value, dict) and "messages" in _request(value) and bool(_response(value))


def read_conversations(values: Iterable[Any], outcome: str | None, found: LoggedConversations) -> None:
    """
    Read conversations: `messages`, an outcome, and optionally `tools` (or `functions`), `terminated`, `task` and
    `first_action`. `outcome` names the place of their outcome, see [`~log_formats.logged.find_outcome`].
    """
    for value in found.shallow(values):
        try:
            if not is_conversation(value):
                raise UnreadableError("it is no conversation with `messages`")
            if value.get("response"):
                found.notes["a `response` beside `messages` is left out: it is not an object with `choices`"] += 1
            found.add(
                {
                    "messages": value["messages"],
                    "reward": find_outcome(value, outcome),
                    "terminated": value.get("terminated"),
                    "task": _task(value),
                    "tools": _tools(value),
                    "first_action": value.get("first_action"),
                }
            )
        except ValueError as error:
            found.refuse(error)


def read_requests(values: Iterable[Any], outcome: str | None, found: LoggedConversations) -> None:
    """Read requests with answers (`request`, `response`, also in a `body`), and join those of one conversation."""
    calls = []
    for value in found.shallow(values):
        try:
            calls.append(_call(value, outcome))
        except ValueError as error:
            found.refuse(error)
    add_conversations(calls, found)


def _call(value: Any, outcome: str | None) -> ModelCall:
    if not is_request(value):
        raise UnreadableError("it is no request with its answer")
    request, response = _request(value), _response(value)
    choices = response.get("choices")
    if response.get("error") or not choices:
        raise UnreadableError("the server's answer is an error, or has no `choices`")
    if not isinstance(choices, list):
        raise UnreadableError("the `choices` of an answer are no list")
    if len(choices) > 1:
        raise UnreadableError(f"an answer has {len(choices)} choices, and which one was used is not logged")
    if not isinstance(choices[0], dict) or not isinstance(choices[0].get("message"), dict):
        raise UnreadableError("an answer has no message")
    metadata = [place for place in (value, value.get("metadata"), request.get("metadata")) if isinstance(place, dict)]
    groups = [str(place[name]) for name in _GROUPS for place in metadata if place.get(name) is not None]
    return ModelCall(
        *read_each(request["messages"], {"role": "assistant", **choices[0]["message"]}),
        _tools(request),
        groups[0] if groups else None,
        find_outcome(value, outcome),
        choices[0].get("finish_reason") == "length",
    )


def _request(value: dict[str, Any]) -> dict[str, Any]:
    return _body(value.get("request", value))


def _response(value: dict[str, Any]) -> dict[str, Any]:
    return _body(value if "choices" in value else value.get("response"))


def _body(part: Any) -> dict[str, Any]:
    body = _parsed(part.get("body", part) if isinstance(part, dict) else part)
    return body if isinstance(body, dict) else {}


def _parsed(value: Any) -> Any:
    """A body can be text."""
    try:
        return parse_json(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _task(value: dict[str, Any]) -> dict[str, Any]:
    """What tells the task of a conversation: `task` or `task_id`, of any form."""
    task = value.get("task_id") if value.get("task") is None else value["task"]
    read = _parsed(task)
    if isinstance(read, dict):
        return read
    return {} if task is None else {"task": task}


def _tools(value: dict[str, Any]) -> Any:
    functions = value.get("functions")
    if isinstance(functions, list):
        return [{"type": "function", "function": function} for function in functions]
    return value.get("tools") or []
