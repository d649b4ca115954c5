# SPDX-License-Identifier: Apache-2.0

"""Messages of other programs, in the form of OpenAI's chat interface that the package reads."""

from typing import Any

from ..types import Message
from .logged import LoggedConversations, UnreadableError


KEPT = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning", "thinking")
_ROLES = {"developer": "system", "function": "tool"}


def read_messages(messages: Any, found: LoggedConversations) -> list[Message]:
    """
    Read messages of OpenAI's interface, of any age: calls of functions become calls of tools, instructions of a
    developer those of the system, several of them at the beginning one message. A greeting of the assistant before the
    first message of a user is left out, and noted.

    Raises:
        UnreadableError: If they are no messages.
    """
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UnreadableError("its messages are no list of messages")
    read = [read_message(message) for message in messages]
    first = next((i for i, message in enumerate(read) if message.get("role") != "system"), len(read))
    texts = [message.get("content") for message in read[:first]]
    if first > 1 and all(isinstance(text, str) for text in texts):
        read = [{"role": "system", "content": "\n\n".join(texts)}, *read[first:]]
        first = 1
    start = first
    while start < len(read) and read[start].get("role") == "assistant" and not read[start].get("tool_calls"):
        start += 1
    if start > first and start < len(read):
        found.notes["the assistant's greeting before the first message of the user is left out"] += 1
        read = read[:first] + read[start:]
    return read


def read_message(message: Message) -> Message:
    """Read one message, see [`read_messages`]."""
    read = {name: message[name] for name in KEPT if message.get(name) is not None}
    read.setdefault("content", message.get("refusal"))
    if isinstance(read.get("role"), str):
        read["role"] = _ROLES.get(read["role"], read["role"])
    call = message.get("function_call")
    if call and not read.get("tool_calls"):
        read["tool_calls"] = [{"type": "function", "function": call}]
    return read
