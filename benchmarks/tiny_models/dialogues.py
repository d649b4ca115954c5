# SPDX-License-Identifier: Apache-2.0

"""Supervised samples of the roles: the right answer of each role about an action whose whole future is known."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from trl_nlac.chat.tool_calls import call_message, format_tool_call
from trl_nlac.episodes.text_environment import Message
from trl_nlac.prompts import Critique, NLACPrompts, numbered


ROLES = ("policy", "critique", "successor", "backup", "refine")
ROLES_OF_SEVERAL_FUTURES = ("future", "evaluation", "backup_future")  # instead of critique and backup, with k > 1
# Can be learned without knowing an instance: copying, following advice, weighing futures.
ROLES_OF_ANY_INSTANCE = ("backup", "backup_future", "refine", "evaluation")


@dataclass(frozen=True)
class RoleDialogue:
    """The events around one action, which determine the right output of every role."""

    first_observation: str
    history: list[tuple[str, str]]  # actions and observations before the action
    action: str  # the action that is criticised
    future: list[tuple[str, str]]  # the action and its observation, then all later ones to the end
    won: bool
    advice: str  # how to improve the action; empty if it succeeds
    refined_action: str  # the action that follows the advice
    tool: dict[str, Any]  # JSON schema of the tool, used if actions are tool calls
    # earlier versions of the action with their critiques. Only refinement sees them.
    earlier_attempts: list[tuple[str, Critique]] = field(default_factory=list)
    # predicted futures that an evaluator weighs; `future` is the most credible.
    foreseen: list[str] = field(default_factory=list)
    score: float | None = None  # score of the episode. If `None`, 1 for a success and 0 otherwise.

    @property
    def critique(self) -> Critique:
        """The right critique of the action."""
        return Critique(told(self.future), self.won, self.advice)

    def messages(
        self, role: str, prompts: NLACPrompts, action_format: str = "text", states_action: bool = False
    ) -> tuple[list[Message], Message]:
        """
        Return the conversation up to the answer of `role`, one of `ROLES` or `ROLES_OF_SEVERAL_FUTURES`, and the right
        answer. Futures describe later actions in plain words, whatever the format; with `states_action` the future in
        a backup begins with the action in its format, as with `bootstrap="explicit"`.
        """
        messages = prompts.opening([_user(self.first_observation)], action_format, tools=[])
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
                messages += [self._act(action, seen, action_format), *prompts.question("critique")]
                messages += [_says(critique.text), *prompts.refinement(action_format, critique)]
            return messages, self._act(self.refined_action, seen, action_format)
        messages.append(self._act(self.action, seen, action_format))
        critique = self.critique
        if role == "critique":
            return [*messages, *prompts.question("critique")], _says(critique.text)
        if role == "future":
            return [*messages, *prompts.question("future")], _says(critique.future)
        if role == "evaluation":
            question = prompts.question("evaluation", futures=numbered(self.foreseen))
            return [*messages, *question], _says(critique.text)
        judges = role == "backup"
        target = _says(critique.text if judges else critique.future)
        if not rest:
            name = "backup_terminated" if judges else "backup_future_terminated"
            score = self.won if self.score is None else self.score
            values = {"next_observation": next_observation, "score": f"{score:g}", "success_threshold": "1"}
            question = prompts.question(name, **values)
            return [*messages, *question], target
        messages += prompts.question("successor", next_observation=next_observation)
        if role == "successor":
            return messages, _says(rest)
        if states_action and action_format == "tool_call":
            (action, _), *_ = self.future[1:]
            rest = self._as_tool_call(action) + rest.removeprefix(action)
        return [*messages, _says(rest), *prompts.question("backup" if judges else "backup_future")], target

    def _act(self, action: str, seen: str, action_format: str) -> Message:
        """Make the assistant message that takes `action` after the observation `seen`."""
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


Steps = list[tuple[str, str]]  # actions, each with its observation


def believed(futures: list[Steps]) -> Steps:
    """Return the first future with the most common beginning and, among those, the most common end."""
    begins, ends = [steps[0][1] for steps in futures], [steps[-1][1].endswith("win") for steps in futures]
    [(begin, _)] = Counter(begins).most_common(1)
    [(end, _)] = Counter(e for b, e in zip(begins, ends, strict=True) if b == begin).most_common(1)
    return futures[list(zip(begins, ends, strict=True)).index((begin, end))]


def told(steps: Steps) -> str:
    """Return the future of an action as text: its observation, then all later actions and observations."""
    return " ".join([steps[0][1], *(f"{action} {answer}" for action, answer in steps[1:])])


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _says(content: str) -> Message:
    return {"role": "assistant", "content": content}
