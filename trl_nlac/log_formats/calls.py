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

"""Calls of a model, each with all messages before it, as conversations."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..chat.tool_calls import said
from ..types import Message
from .base import LoggedConversations


@dataclass
class ModelCall:
    """
    A request to a model, and its answer.

    Args:
        messages (`list[dict[str, Any]]`):
            The request's messages.
        answer (`dict[str, Any]`):
            The answer.
        tools (`list[dict[str, Any]]`, *optional*):
            JSON schemas of the tools.
        group (`str`, *optional*):
            Which run of an agent it belongs to, if the log says so.
        outcome (`float`, *optional*):
            The outcome of the run, if it is logged with this call.
        is_cut (`bool`, *optional*, defaults to `False`):
            Whether the answer was cut at a limit of tokens.
    """

    messages: list[Message]
    answer: Message
    tools: list[dict[str, Any]] = field(default_factory=list)
    group: str | None = None
    outcome: float | None = None
    is_cut: bool = False


@dataclass
class _Conversation:
    messages: list[Message]
    tools: list[dict[str, Any]]
    outcome: float | None
    is_cut: bool


def add_conversations(calls: Iterable[ModelCall], found: LoggedConversations) -> None:
    """
    Join calls into conversations: one continues another if it begins with all of its messages. A history that was not
    only appended to, by compaction or sub-agents, begins another conversation with the outcome of the same run. A
    request that a run repeats, as clients do when an answer is lost, and that it went on from, is none.

    Args:
        calls (`Iterable[ModelCall]`):
            The calls, in the order of time.
        found ([`~log_formats.base.LoggedConversations`]):
            Where to add them.
    """
    open_ends: dict[str | None, dict[tuple[tuple[str, ...], ...], _Conversation]] = {}
    outcomes: dict[str, float] = {}
    for call in calls:
        ends = open_ends.setdefault(call.group, {})
        keys = tuple(map(said, call.messages))
        before = next((keys[:i] for i in range(len(keys), 0, -1) if keys[:i] in ends), None)
        conversation = ends.pop(before) if before else _Conversation([], [], None, False)
        conversation.messages = [*call.messages, call.answer]
        conversation.tools = call.tools or conversation.tools
        conversation.is_cut = call.is_cut
        if call.outcome is not None:
            conversation.outcome = call.outcome
            if call.group is not None:
                outcomes[call.group] = call.outcome
        while (end := (*keys, said(call.answer))) in ends:  # said twice, by two runs that the log does not tell apart
            keys = (*keys, ())
        ends[end] = conversation
    for group, ends in open_ends.items():
        if group is not None and len(ends) > 1:
            repeated = _repeated(ends)
            ends = {end: conversation for end, conversation in ends.items() if end not in repeated}
            found.notes += Counter(  # without those of which there are none
                {
                    "a request that the same run repeats, with the same answer": len(repeated),
                    "another conversation of the same run: its history was not only appended to": len(ends) - 1,
                }
            )
        for conversation in ends.values():
            outcome = conversation.outcome if group is None else outcomes.get(group)
            found.add(
                {
                    "messages": conversation.messages,
                    "reward": outcome,
                    "terminated": not conversation.is_cut,
                    "tools": conversation.tools,
                }
            )


def _repeated(ends: Iterable[tuple[tuple[str, ...], ...]]) -> set[tuple[tuple[str, ...], ...]]:
    """Return the ends with which another begins, or which another is, once what tells equal ones apart is left out."""
    repeated, begun = set(), set()
    for end in sorted(ends, key=len, reverse=True):  # one that was said twice is longer by what tells it apart
        keys = tuple(key for key in end if key)
        if keys in begun:
            repeated.add(end)
        begun.update(keys[:i] for i in range(1, len(keys) + 1))
    return repeated
