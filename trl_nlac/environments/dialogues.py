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

from dataclasses import dataclass, field

from ..prompts import Critique, NLACPrompts, render


ROLES = ("policy", "critique", "successor", "backup", "refine")


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
        earlier_attempts (`list[tuple[str, Critique]]`, *optional*):
            Actions in place of which, after their critiques, the action was taken. Only refinement sees them.
    """

    first_observation: str
    history: list[tuple[str, str]]
    action: str
    future: list[tuple[str, str]]
    won: bool
    advice: str
    refined_action: str
    earlier_attempts: list[tuple[str, Critique]] = field(default_factory=list)

    @property
    def critique(self) -> Critique:
        future = " ".join([self.future[0][1], *(f"{action} {answer}" for action, answer in self.future[1:])])
        return Critique(future, self.won, self.advice)

    def messages(self, role: str, prompts: NLACPrompts) -> tuple[list[dict[str, str]], str]:
        """
        The conversation up to where `role` speaks, and what it should say, in the words of `prompts`.

        Returns:
            `tuple[list[dict[str, str]], str]`: messages and completion.
        """
        messages = [_user(self.first_observation)]
        for action, observation in self.history:
            messages += [_assistant(action), _user(observation)]
        next_observation = self.future[0][1]
        rest = " ".join(f"{action} {observation}" for action, observation in self.future[1:])
        if role == "policy" or (role == "successor" and not rest):
            return messages, self.action
        if role == "refine":
            for action, critique in [*self.earlier_attempts, (self.action, self.critique)]:
                messages += [_assistant(action), _user(prompts.critique), _assistant(critique.text)]
                messages.append(_user(prompts.refine))
            return messages, self.refined_action
        messages.append(_assistant(self.action))
        critique = self.critique
        if role == "critique":
            return [*messages, _user(prompts.critique)], critique.text
        if not rest:
            score = f"{float(self.won):g}"
            prompt = render(prompts.backup_terminated, next_observation=next_observation, score=score)
            return [*messages, _user(prompt)], critique.text
        messages.append(_user(render(prompts.successor, next_observation=next_observation)))
        if role == "successor":
            return messages, rest
        return [*messages, _assistant(rest), _user(prompts.backup)], critique.text


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}
