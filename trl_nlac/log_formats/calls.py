# SPDX-License-Identifier: Apache-2.0

"""Calls of a model, each with all messages before it, as conversations."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..chat.message_reader import read_message
from ..chat.tool_calls import said
from ..types import Message
from .logged import LoggedConversations, UnreadableError


@dataclass
class ModelCall:
    """A request to a model, and its answer."""

    messages: list[Message]
    answer: Message
    tools: list[dict[str, Any]] = field(default_factory=list)  # JSON schemas of the tools
    group: str | None = None  # which run of an agent it belongs to, if the log says so
    outcome: float | None = None  # the outcome of the run, if it is logged with this call
    is_cut: bool = False  # whether the answer was cut at a limit of tokens


@dataclass
class _Conversation:
    messages: list[Message]
    tools: list[dict[str, Any]]
    outcome: float | None  # of its last call that has one
    is_cut: bool
    outcomes: set[float] = field(default_factory=set)  # of all its calls


def read_each(messages: Any, answer: Message) -> tuple[list[Message], Message]:
    """Read the messages of a call and the answer, each for itself; an [`UnreadableError`] if one is none."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UnreadableError("there is no list of messages with a `role` each")
    try:
        *read, said = [read_message({"role": None, **message}, i) for i, message in enumerate([*messages, answer])]
    except ValueError as error:
        raise UnreadableError(str(error)) from error
    return read, said


def add_conversations(calls: Iterable[ModelCall], found: LoggedConversations) -> None:
    """
    Join calls into conversations: one continues another if it begins with all of its messages. A history that was
    rewritten, by compaction or sub-agents, begins another conversation with the outcome of the same run. A request
    that a run repeats, as clients do when an answer is lost, and that it went on from, is none.

    The outcome of a run is that of all its conversations. If a run has several, each conversation has its own: that of
    its last call that has one.
    """
    # Several conversations can have the same end, as of runs that the log does not tell apart.
    open_ends: dict[str | None, defaultdict[tuple[tuple[str, ...], ...], list[_Conversation]]] = {}
    outcomes: dict[str | None, set[float]] = defaultdict(set)
    for call in calls:
        ends = open_ends.setdefault(call.group, defaultdict(list))
        keys = tuple(map(said, call.messages))
        before = next((keys[:i] for i in range(len(keys), 0, -1) if ends.get(keys[:i])), None)
        conversation = _Conversation([], [], None, False)
        if before:
            of_run = (place for place, one in enumerate(ends[before]) if one.outcome == call.outcome)
            conversation = ends[before].pop(next(of_run, 0))
        conversation.messages = [*call.messages, call.answer]
        conversation.tools = call.tools or conversation.tools
        conversation.is_cut = call.is_cut
        if call.outcome is not None:
            conversation.outcome = call.outcome
            conversation.outcomes.add(call.outcome)
            if call.group is not None:
                outcomes[call.group].add(call.outcome)
        ends[(*keys, said(call.answer))].append(conversation)
    for group, ends_of_group in open_ends.items():
        ends = [(end, conversation) for end, several in ends_of_group.items() for conversation in several]
        if group is not None and len(ends) > 1:
            repeated = _repeated([end for end, _ in ends])
            kept = {conversation.outcome for i, (_, conversation) in enumerate(ends) if i not in repeated} - {None}
            repeated = {i for i in repeated if not kept or ends[i][1].outcome in {None, *kept}}  # else it contradicts
            ends = [ends[i] for i in range(len(ends)) if i not in repeated]
            rewritten = "another conversation of the same run: its history was rewritten (sub-agent, compaction)"
            found.notes += Counter(  # without those of which there are none
                {"a request that the same run repeats, with the same answer": len(repeated), rewritten: len(ends) - 1}
            )
        of_group = outcomes[group]
        if len(of_group) > 1 and len(ends) > 1:
            found.notes["a run with several outcomes: each of its conversations has its own"] += 1
        for _, conversation in ends:
            outcome = conversation.outcome
            if outcome is None and of_group:
                if len(of_group) > 1:
                    found.refuse("its run has several outcomes, and none is its own")
                    continue
                (outcome,) = of_group
            if len(conversation.outcomes) > 1:
                found.notes["a conversation with several outcomes: the last is taken"] += 1
            found.add(
                {
                    "messages": conversation.messages,
                    "reward": outcome,
                    "terminated": not conversation.is_cut,
                    "tools": conversation.tools,
                }
            )


def _repeated(ends: list[tuple[tuple[str, ...], ...]]) -> set[int]:
    """Return the places of ends with which another begins, or that are there before."""
    repeated, begun = set(), set()
    for place in sorted(range(len(ends)), key=lambda place: len(ends[place]), reverse=True):
        if ends[place] in begun:
            repeated.add(place)
        begun.update(ends[place][:i] for i in range(1, len(ends[place]) + 1))
    return repeated
