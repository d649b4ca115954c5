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

"""Supervised samples of the roles: what each role should say about an action whose whole future is known."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ...chat.tool_calls import call_message, format_tool_call
from ...prompts import Critique, NLACPrompts, numbered, render
from ..base import Message


ROLES = ("policy", "critique", "successor", "backup", "refine")
ROLES_OF_SEVERAL_FUTURES = ("future", "evaluation", "backup_future")  # in place of critique and backup, with k > 1
# What can be learned without knowing an instance: to copy, to follow advice, to weigh futures.
ROLES_OF_ANY_INSTANCE = ("backup", "backup_future", "refine", "evaluation")


@dataclass(frozen=True)
class RoleDialogue:
    """
    What happened around one action, from which the right words of every role follow.

    Args:
        first_observation (`str`):
            What the episode began with.
        history (`list[tuple[str, str]]`):
            Actions and observations before the action.
        action (`str`):
            The action that is criticised.
        future (`list[tuple[str, str]]`):
            The action and its observation, then all later ones to the end.
        won (`bool`):
            Whether that future succeeds.
        advice (`str`):
            How the action can be improved; empty if it succeeds.
        refined_action (`str`):
            The action that follows the advice.
        tool (`dict[str, Any]`):
            JSON schema of the tool that an action calls where actions are tool calls.
        earlier_attempts (`list[tuple[str, Critique]]`, *optional*):
            Actions in place of which, after their critiques, the action was taken. Only refinement sees them.
        foreseen (`list[str]`, *optional*):
            Futures that an evaluator weighs; `future` is the one to believe.
    """

    first_observation: str
    history: list[tuple[str, str]]
    action: str
    future: list[tuple[str, str]]
    won: bool
    advice: str
    refined_action: str
    tool: dict[str, Any]
    earlier_attempts: list[tuple[str, Critique]] = field(default_factory=list)
    foreseen: list[str] = field(default_factory=list)

    @property
    def critique(self) -> Critique:
        """What the critic should say about the action."""
        return Critique(told(self.future), self.won, self.advice)

    def messages(
        self, role: str, prompts: NLACPrompts, action_format: str = "text", states_action: bool = False
    ) -> tuple[list[Message], Message]:
        """
        The conversation up to where `role` speaks, and what it should say.

        Args:
            role (`str`):
                One of `ROLES` or `ROLES_OF_SEVERAL_FUTURES`.
            prompts ([`NLACPrompts`]):
                The words of the roles.
            action_format (`str`, *optional*, defaults to `"text"`):
                How actions are written. Futures tell of later actions in plain words, whatever the format.
            states_action (`bool`, *optional*, defaults to `False`):
                Whether the future that a backup joins begins with an action as it was taken, as with
                `bootstrap="explicit"`.

        Returns:
            `tuple[list[Message], Message]`: messages and completion.
        """
        system = render(prompts.policy, action_format=prompts.action_format(action_format))
        messages = [{"role": "system", "content": system}] if system else []
        messages.append(_user(self.first_observation))
        seen = self.first_observation
        for action, observation in self.history:
            messages.append(self._act(action, seen, action_format))
            messages.append(self._answer(observation, action_format))
            seen = observation
        next_observation = self.future[0][1]
        rest = " ".join(f"{action} {observation}" for action, observation in self.future[1:])
        if role == "policy" or (role == "successor" and not rest):
            return messages, self._act(self.action, seen, action_format)
        if role == "refine":
            for action, critique in [*self.earlier_attempts, (self.action, self.critique)]:
                messages += [self._act(action, seen, action_format), _user(prompts.critique), _says(critique.text)]
                messages.append(_user(prompts.refine))
            return messages, self._act(self.refined_action, seen, action_format)
        messages.append(self._act(self.action, seen, action_format))
        critique = self.critique
        if role == "critique":
            return [*messages, _user(prompts.critique)], _says(critique.text)
        if role == "future":
            return [*messages, _user(prompts.future)], _says(critique.future)
        if role == "evaluation":
            question = render(prompts.evaluation, futures=numbered(self.foreseen))
            return [*messages, _user(question)], _says(critique.text)
        judges = role == "backup"
        target = _says(critique.text if judges else critique.future)
        if not rest:
            template = prompts.backup_terminated if judges else prompts.backup_future_terminated
            question = render(template, next_observation=next_observation, score=f"{float(self.won):g}")
            return [*messages, _user(question)], target
        messages.append(_user(render(prompts.successor, next_observation=next_observation)))
        if role == "successor":
            return messages, _says(rest)
        if states_action and action_format == "tool_call":
            (action, _), *_ = self.future[1:]
            rest = self._as_tool_call(action) + rest.removeprefix(action)
        return [*messages, _says(rest), _user(prompts.backup if judges else prompts.backup_future)], target

    def _act(self, action: str, seen: str, action_format: str) -> Message:
        """An assistant's turn that takes `action` after having seen an observation."""
        if action_format == "react":
            return _says(f"Thought: {seen}\nAction: {action}")
        if action_format == "text":
            return _says(action)
        return call_message([(self.tool["function"]["name"], self._arguments(action))])

    def _answer(self, observation: str, action_format: str) -> Message:
        if action_format == "tool_call":
            return {"role": "tool", "name": self.tool["function"]["name"], "content": observation}
        return _user(observation)

    def _arguments(self, action: str) -> dict[str, str]:
        names = self.tool["function"]["parameters"]["properties"]
        return dict(zip(names, action.split()[1:], strict=True))

    def _as_tool_call(self, action: str) -> str:
        return format_tool_call(action.split()[0], self._arguments(action))


Steps = list[tuple[str, str]]  # actions, each with the observation that answered it


def believed(futures: list[Steps]) -> Steps:
    """The first of those futures that begin as most others do, and of these end as most others do."""
    begins, ends = [steps[0][1] for steps in futures], [steps[-1][1].endswith("win") for steps in futures]
    [(begin, _)] = Counter(begins).most_common(1)
    [(end, _)] = Counter(e for b, e in zip(begins, ends, strict=True) if b == begin).most_common(1)
    return futures[list(zip(begins, ends, strict=True)).index((begin, end))]


def told(steps: Steps) -> str:
    """What came of an action in words: the answer to it, then all later actions with theirs."""
    return " ".join([steps[0][1], *(f"{action} {answer}" for action, answer in steps[1:])])


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _says(content: str) -> Message:
    return {"role": "assistant", "content": content}
