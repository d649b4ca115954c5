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

"""Conversations in chat messages as the policy sees them, in tokens with the actions in them, and back."""

import json
from itertools import chain
from typing import Any

from ..chat.tool_calls import call_message, format_results, format_tool_calls
from ..environments.base import Message
from ..method.roles import Roles
from ..types import Episode, Transition
from .recorder import Recorder


def problem_of(messages: Any) -> str | None:
    """Why messages are no conversation between environment and agent; `None` if they are one."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        return "there is no list of messages with a `role` each"
    speakers = [message["role"] for message in messages]
    unknown = set(speakers) - {"system", "user", "assistant", "tool"}
    if unknown:
        return f"the role {min(unknown)!r} is none of system, user, assistant and tool"
    for i, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        if calls and any(_read_call(call) is None for call in calls):
            return f"message {i} has a tool call without a name or with arguments that are no JSON object"
        if not calls and _text(message) is None:
            return f"the content of message {i} is not text"
    first = speakers.index("assistant") if "assistant" in speakers else len(speakers)
    openers = [speaker for speaker in speakers[:first] if speaker != "system"]
    if "system" in speakers[1:] or not openers or set(openers) != {"user"}:
        return f"it does not begin with a user's message, after at most one of the system: {speakers[: first + 1]}"
    previous: dict[str, Any] | None = None
    pending = 0  # calls that no result has answered
    for i, message in enumerate(messages[first:], first):
        if message["role"] == "tool":
            if not pending:
                return f"message {i} is the result of a tool that nothing called"
            pending -= 1
        elif pending and previous is not None:
            return f"before message {i}, {pending} tool calls have no result"
        elif message["role"] == "assistant":
            if previous is not None and previous["role"] == "assistant":
                return f"messages {i - 1} and {i} are both the assistant's"
            pending = len(message.get("tool_calls") or [])
        previous = message
    if 0 < pending < len(next(m for m in reversed(messages) if m["role"] == "assistant").get("tool_calls") or []):
        return f"at its end, {pending} tool calls have no result"
    return None


def record_conversation(
    messages: list[Message],
    roles: Roles,
    tools: list[dict[str, Any]] | None = None,
    max_prompt_length: int | None = None,
    waits: bool = False,
) -> Recorder:
    """
    Write a conversation down as if the policy had played it.

    Args:
        messages (`list[dict[str, Any]]`):
            Messages of which [`problem_of`] finds nothing wrong. Calls of tools are the chat template's own with
            `action_format="tool_call"`, and JSON in the action otherwise.
        roles ([`Roles`]):
            Who speaks.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of the tools.
        max_prompt_length (`int`, *optional*):
            Number of tokens of a state, to which a longer history is cut.
        waits (`bool`, *optional*, defaults to `False`):
            Whether what comes after the last action is to be answered.

    Raises:
        ValueError: If a state is too long though its history is cut.
    """
    speakers = [message["role"] for message in messages]
    i = speakers.index("assistant") if "assistant" in speakers else len(messages)
    recorder = Recorder(roles, {}, tools, max_prompt_length)
    recorder.begin([{"role": m["role"], "content": _text(m)} for m in messages[:i]])
    while i < len(messages):
        said, i = messages[i], i + 1
        heard = []
        while i < len(messages) and speakers[i] != "assistant":
            heard.append(_text(messages[i]))
            i += 1
        message, action = read_action(said, roles)
        observation = format_results(heard) if said.get("tool_calls") and heard else "\n\n".join(heard)
        recorder.take(action, roles.chat.past_turn(message), observation)
        if heard and (waits or i < len(messages)):
            recorder.hear()
            if recorder.truncated:
                raise ValueError(
                    f"What is to be answered by message {i} does not fit into `max_prompt_length={max_prompt_length}`, though "
                    "its history is cut."
                )
    return recorder


def conversation(episode: Episode, roles: Roles) -> dict[str, Any]:
    """
    An episode as a row that [`~episodes.logs.episodes_from_logs`] takes.

    Returns:
        `dict[str, Any]`: `messages` (without the words of the policy's own prompt), `reward`, `terminated`, and `task` and
        `tools` in JSON.
    """
    turns = [turn_messages(episode, i, roles) for i in range(len(episode.turns))]
    if turns and not episode.turns[-1].next_observation:
        del turns[-1][1:]  # nothing was said
    return {
        "messages": [*episode.opening, *chain(*turns)],
        "reward": episode.score,
        "terminated": episode.terminated,
        "task": json.dumps(episode.task),
        "tools": json.dumps(episode.tools),
    }


def turn_messages(episode: Episode, index: int, roles: Roles) -> list[Message]:
    """What the agent said in a turn, and what was answered."""
    turn, token_ids = episode.turns[index], list(Transition(episode, index).action_ids)
    said = roles.said(turn.action, roles.chat.decode(token_ids), token_ids)
    return [said, *roles.heard(turn.action, turn.next_observation)]


def read_action(said: Message, roles: Roles) -> tuple[Message, str]:
    """An assistant's message as the policy would have said it, and the action in it."""
    calls = [_read_call(call) for call in said.get("tool_calls") or []]
    if not calls:
        text = _text(said)
        return {"role": "assistant", "content": text}, roles.parse_action(text) or text
    action = format_tool_calls(calls)
    content = _text(said) or ""
    if roles.calls_tools:
        return call_message(calls, content), action
    thought = " ".join(content.split())
    return {"role": "assistant", "content": roles.action_text(action, thought)}, action


def _text(message: Message) -> str | None:
    """What a message says; `None` if that is not text."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(part["text"] for part in content)
    return content if isinstance(content, str) else None


def _read_call(call: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a tool call, which may be JSON; `None` if it cannot be read."""
    function = call.get("function") or call
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return None
    if not isinstance(function.get("name"), str) or not isinstance(arguments, dict):
        return None
    return function["name"], {name: value for name, value in arguments.items() if value is not None}
