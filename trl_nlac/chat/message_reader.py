# SPDX-License-Identifier: Apache-2.0

"""
The one reader of conversations: logs, `replay_dataset`, the requests of agents, what `reset` returns, the column
`prompt` and transcripts pass through it. What is in no row of the table is refused, with the same reason everywhere.

| given | read |
|---|---|
| the role `developer` | `system` |
| the role `function`, a `function_call` | the result of a tool, a call of one |
| a `function_call` beside `tool_calls` | the same call again; another one is refused |
| several messages of the system at the beginning | one, with an empty line between the texts |
| the last of these, where no message is the user's | the user's |
| a message of the system after another's | the user's |
| messages of the assistant in a row | one: texts with a line break between them, then all calls |
| the assistant's words before the user's first message | a greeting, which is no action |
| an end with the assistant's message | the last action of a log; where an answer is asked for, it is refused |
| a content in parts of text, or a refusal | one text, with line breaks between the parts |
| no content, `null` | no text |
| arguments as an object, or as JSON text of one; none, `""`, `null`, `"null"` | the object; an empty one |
| results of tools | in the order of their calls: by id, else by name, else as they stand |
| a chain of thought in `reasoning_content`, `reasoning` or `thinking` | as it is |
| half a character (a lone surrogate) | a question mark |
| other keys of a message | left out |
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ..types import SPEAKERS, Message, text_of
from .tool_calls import is_writable, read_call, results_in_order, said


THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # where messages of models have their chain of thought
_ROLES = {"developer": "system", "function": "tool"}


def read_conversation(messages: Any) -> tuple[list[Message], list[int]]:
    """
    Read messages as a conversation between a user and the assistant, who can call tools; see the table. The new
    messages have `role` and `content` (text), and where they have them `tool_calls` (with arguments as JSON text),
    `tool_call_id`, `name` and thoughts. Returned with them, for each message that was given: the index of the one that
    it has become or is part of. Raise a `ValueError` if they are none.
    """
    given = messages if isinstance(messages, list) else []
    if not given or not all(isinstance(message, dict) and "role" in message for message in given):
        raise ValueError("there is no list of messages with a `role` each")
    given = [read_message(message, i) for i, message in enumerate(given)]
    num_system = next((i for i, message in enumerate(given) if message["role"] != "system"), len(given))
    if num_system and all(message["role"] != "user" for message in given):
        num_system -= 1
    read, places = [], []
    for i, message in enumerate(given):
        if message["role"] == "system" and i >= num_system:
            message = {**message, "role": "user"}
        if read and message["role"] == read[-1]["role"] and message["role"] in ("system", "assistant"):
            message = _joined(read.pop(), message)
        read.append(message)
        places.append(len(read) - 1)
    ordered, first = [], next((i for i, message in enumerate(read) if message["role"] == "user"), len(read))
    before = [message["role"] for message in read[:first]]
    if before not in ([], ["system"], ["assistant"], ["system", "assistant"]) or first == len(read):
        raise ValueError(
            "it does not begin with a user's message, after at most one of the system and a greeting of the assistant"
        )
    if any(message.get("tool_calls") for message in read[:first]):
        raise ValueError("the assistant calls tools before a user has said anything")
    starts = [first, *(i for i, message in enumerate(read) if message["role"] == "assistant" and i > first)]
    for start, end in pairwise([*starts, len(read)]):
        ordered += _ordered_turn(start, read[start:end], end == len(read))
    return [*read[:first], *ordered], places


def read_question(messages: Any) -> list[Message]:
    """Read messages that wait for an answer, see [`read_conversation`]; raise a `ValueError` if they do not."""
    read, _ = read_conversation(messages)
    if read[-1]["role"] == "assistant":
        raise ValueError("the last message is the assistant's, so there is nothing to answer: end with the user's")
    return read


def read_message(message: Message, number: int = 0) -> Message:
    """Read one message, which is named by its number, see the table; a `ValueError` if it is none."""
    role = _ROLES.get(message["role"], message["role"]) if isinstance(message["role"], str) else message["role"]
    if role not in SPEAKERS:
        raise ValueError(f"the role {role!r} is none of {', '.join(SPEAKERS)}")
    content = message.get("refusal") if message.get("content") is None else message["content"]
    text = "" if content is None else text_of({"content": content})
    names = {name: message[name] for name in ("name", "tool_call_id", *THOUGHTS) if message.get(name) is not None}
    if text is None:
        raise ValueError(f"the content of message {number} is not text")
    if not all(isinstance(value, str) for value in names.values()):
        raise ValueError(f"message {number} has a name, an id or a chain of thought that is not text")
    read = {"role": role, "content": in_unicode(text), **{name: in_unicode(value) for name, value in names.items()}}
    new, old = message.get("tool_calls") or [], [message["function_call"]] if message.get("function_call") else []
    if (new or old) and role != "assistant":
        raise ValueError(f"message {number} calls tools, and is not the assistant's")
    calls, old_calls = ([_read_call(c, number) for c in (cs if isinstance(cs, list) else [None])] for cs in (new, old))
    if calls and old_calls and said({"tool_calls": calls}) != said({"tool_calls": old_calls}):
        raise ValueError(f"message {number} has `tool_calls`, and another call in `function_call`: keep one of them")
    if calls or old_calls:
        read["tool_calls"] = calls or old_calls
    return read


def first_answer(messages: Sequence[Message]) -> int:
    """The index of the assistant's first message after a user's, which is no greeting; else their number."""
    user = next((i for i, message in enumerate(messages) if message["role"] == "user"), len(messages))
    return next((i for i, m in enumerate(messages) if m["role"] == "assistant" and i > user), len(messages))


def in_unicode(text: str) -> str:
    """Copy text, without what a subclass of `str` adds. Half characters, which no tokenizer takes, become marks."""
    return str.encode(text, errors="replace").decode()


def _read_call(call: Any, number: int) -> dict[str, Any]:
    """Read a call of a tool. Arguments stay as they were written, if they are JSON text of an object."""
    read = read_call(call)
    if read is None:
        raise ValueError(f"message {number} has a tool call without a name, or whose arguments are not a JSON object")
    if not isinstance(call.get("id"), str | None):
        raise ValueError(f"message {number} has a tool call whose id is not text")
    try:
        written = json.dumps(read[1], ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"JSON does not hold the arguments of a tool call of message {number}: {error}") from error
    name, arguments = in_unicode(read[0]), in_unicode(written)
    if not is_writable([(name, json.loads(arguments))]):
        raise ValueError(f"JSON does not hold the arguments of a tool call of message {number}")
    text = call.get("function", call).get("arguments")
    if isinstance(text, str) and text.lstrip().startswith("{") and written == arguments:
        arguments = text
    of_id = {} if call.get("id") is None else {"id": in_unicode(call["id"])}
    return {**of_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _joined(one: Message, other: Message) -> Message:
    """Join two messages of the same role."""
    space = "\n" if one["role"] == "assistant" else "\n\n"
    content = space.join(message["content"] for message in (one, other) if message["content"])
    calls = [*one.get("tool_calls", []), *other.get("tool_calls", [])]
    return {**one, **other, "content": content, **({"tool_calls": calls} if calls else {})}


def _ordered_turn(start: int, turn: list[Message], is_last: bool) -> list[Message]:
    """Put the results of a turn, of a message and what follows it, in the order of its calls."""
    said, *replies = turn
    calls = said.get("tool_calls") or []
    results = replies[: next((i for i, message in enumerate(replies) if message["role"] != "tool"), len(replies))]
    others = replies[len(results) :]
    if len(results) > len(calls) or any(message["role"] == "tool" for message in others):
        raise ValueError(f"after message {start}, there is the result of a tool that nothing called")
    if len(results) < len(calls) and not (is_last and not replies):
        place = f"before message {start + 1 + len(results)}" if not is_last or others else "at its end"
        raise ValueError(f"{place}, {len(calls) - len(results)} tool calls have no result")
    try:
        return [said, *(results_in_order(calls, results) if results else []), *others]
    except ValueError as error:
        raise ValueError(f"after message {start}, {error}") from error
