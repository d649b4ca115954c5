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

"""Conversations as chat messages: from messages to episodes, and back."""

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from datasets import Dataset

from ..chat.actions import ActionFormat
from ..chat.tool_calls import call_message, format_results, format_tool_calls
from ..prompts import NLACPrompts
from ..types import SPEAKERS, Episode, Message, Transition
from .recorder import Recorder


def problem_of(messages: Any) -> str | None:
    """Say why messages are not a conversation between environment and agent; `None` if they are one."""
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        return "there is no list of messages with a `role` each"
    speakers = [message["role"] for message in messages]
    unknown = [speaker for speaker in speakers if speaker not in SPEAKERS]
    if unknown:
        return f"the role {unknown[0]!r} is none of {', '.join(SPEAKERS)}"
    for i, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        if calls and any(_read_call(call) is None for call in calls):
            return f"message {i} has a tool call without a name, or whose arguments are not a JSON object"
        if not calls and _text(message) is None:
            return f"the content of message {i} is not text"
    first = speakers.index("assistant") if "assistant" in speakers else len(speakers)
    openers = [speaker for speaker in speakers[:first] if speaker != "system"]
    if "system" in speakers[1:] or not openers or set(openers) != {"user"}:
        return f"it does not begin with a user's message, after at most one of the system: {speakers[: first + 1]}"
    previous: dict[str, Any] | None = None
    pending = 0  # calls without a result
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
    actions: ActionFormat,
    prompts: NLACPrompts,
    tools: list[dict[str, Any]] | None = None,
    max_prompt_length: int | None = None,
    is_open: bool = False,
) -> Recorder:
    """
    Record a conversation as if the policy had played it.

    Args:
        messages (`list[dict[str, Any]]`):
            Messages in which [`problem_of`] finds no problem. Tool calls use the chat template's own format with
            `action_format="tool_call"`, and JSON in the action otherwise.
        actions ([`~chat.actions.ActionFormat`]):
            The format of actions.
        prompts ([`NLACPrompts`]):
            The prompts; here those of the policy.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of the tools.
        max_prompt_length (`int`, *optional*):
            Maximum number of tokens of a state, to which a longer history is cut.
        is_open (`bool`, *optional*, defaults to `False`):
            Whether the messages after the last action wait for an answer.

    Raises:
        ValueError: If a state is too long although its history is cut.
    """
    speakers = [message["role"] for message in messages]
    i = speakers.index("assistant") if "assistant" in speakers else len(messages)
    recorder = Recorder(actions, prompts, {}, tools, max_prompt_length)
    recorder.begin([{"role": m["role"], "content": _text(m)} for m in messages[:i]])
    while i < len(messages):
        answer, i = messages[i], i + 1
        replies = []
        while i < len(messages) and speakers[i] != "assistant":
            replies.append(_text(messages[i]))
            i += 1
        message, action = read_action(answer, actions, tools)
        observation = format_results(replies) if answer.get("tool_calls") and replies else "\n\n".join(replies)
        recorder.take(action, actions.chat.past_turn(message), observation)
        if max_prompt_length is not None and recorder.turns[-1].action_length > max_prompt_length:
            raise ValueError(
                f"An answer of {recorder.turns[-1].action_length} tokens does not fit into "
                f"`max_prompt_length={max_prompt_length}`."
            )
        if replies and (is_open or i < len(messages)):
            recorder.show_observation()
            if recorder.truncated:
                raise ValueError(
                    f"The state before message {i} does not fit into `max_prompt_length={max_prompt_length}`, "
                    "although its history is cut."
                )
    return recorder


def conversation(episode: Episode, actions: ActionFormat) -> dict[str, Any]:
    """
    Write an episode as a row that [`~episodes.logs.episodes_from_logs`] reads.

    Returns:
        `dict[str, Any]`: `messages` (without the policy's own prompt), `reward`, `terminated`, and `task` and `tools`
        in JSON.
    """
    turns = [turn_messages(episode, i, actions) for i in range(len(episode.turns))]
    if turns and not episode.turns[-1].next_observation:
        del turns[-1][1:]  # an empty observation
    return {
        "messages": [*episode.opening, *chain(*turns)],
        "reward": episode.score,
        "terminated": episode.terminated,
        "task": json.dumps(episode.task),
        "tools": json.dumps(episode.tools),
    }


def to_dataset(episodes: Iterable[Episode], actions: ActionFormat) -> Dataset:
    """
    Write episodes as a dataset of conversations, in the form that the trainer takes as `replay_dataset`.

    Args:
        episodes (`Iterable[Episode]`):
            Episodes, for example `trainer.replay.episodes`.
        actions ([`~chat.actions.ActionFormat`]):
            The format of their actions, for example `trainer.roles.actions`.
    """
    return Dataset.from_list([conversation(episode, actions) for episode in episodes])


def turn_messages(episode: Episode, index: int, actions: ActionFormat) -> list[Message]:
    """Write a turn as messages: the agent's, and the environment's answer."""
    turn, token_ids = episode.turns[index], list(Transition(episode, index).action_ids)
    message = actions.message(turn.action, actions.chat.decode(token_ids), token_ids)
    return [message, *actions.replies(turn.action, turn.next_observation)]


def read_action(
    message: Message, actions: ActionFormat, tools: Sequence[dict[str, Any]] | None = None
) -> tuple[Message, str]:
    """
    Read an assistant's message, which can call `tools`: as the policy would have written it, with its thought, and the
    action in it.
    """
    field = actions.chat.template.reasoning_field
    thought = {field: message[field]} if message.get(field) else {}
    calls = [_read_call(call) for call in message.get("tool_calls") or []]
    if not calls:
        text = _text(message)
        return {"role": "assistant", "content": text} | thought, actions.parse(text, tools or ()) or text
    action = format_tool_calls(calls)
    content = _text(message) or ""
    if actions.calls_tools:
        return call_message(calls, content) | thought, action
    return {"role": "assistant", "content": actions.text(action, " ".join(content.split()))} | thought, action


def _text(message: Message) -> str | None:
    """The text of a message; `None` if its content is not text."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(part["text"] for part in content)
    return content if isinstance(content, str) else None


def _read_call(call: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Read name and arguments of a tool call, which can be JSON; `None` if it cannot be read."""
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
