# SPDX-License-Identifier: Apache-2.0

"""The states of the policy: how a conversation opens, and what of it the policy still sees."""

from typing import Any

from ..chat.actions import ActionFormat
from ..prompts import NLACPrompts
from ..types import Message


def opening_messages(
    actions: ActionFormat, prompts: NLACPrompts, task: list[Message], tools: list[dict[str, Any]]
) -> list[Message]:
    """Add the policy's system message, and examples of actions, to the messages of a task."""
    instructions = ""
    if task[0]["role"] == "system":
        instructions, task = task[0]["content"], task[1:]
    return prompts.opening(task, actions.name, [] if actions.calls_tools else tools, instructions)


def opening_ids(
    actions: ActionFormat, prompts: NLACPrompts, task: list[Message], tools: list[dict[str, Any]], mark: str = ""
) -> list[int]:
    """Encode a conversation up to the first action, with a mark at its end."""
    *messages, last = opening_messages(actions, prompts, task, tools)
    last = {**last, "content": f"{last['content']}\n\n{mark}"} if mark else last
    return actions.chat.start([*messages, last], tools if actions.calls_tools else None)


def forgetful_task(task: list[Message], observation: str) -> list[Message]:
    """The messages of a state without history: the observation is in the place of the task's last message."""
    return [*task[:-1], {"role": "user", "content": observation}]
