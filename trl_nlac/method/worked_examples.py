# SPDX-License-Identifier: Apache-2.0

"""Look before training: which roles keep to their form, and which need worked examples."""

import logging
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import torch
from accelerate.utils import gather_object

from ..prompts import WORKED_EXAMPLES
from ..types import Answer, Episode, RunRefused, Transition
from .backup import backup_questions, write_targets
from .critic import critiques
from .refinement import ask_refined
from .roles import Roles


logger = logging.getLogger(__name__)

NUM_STEPS = 8  # about which each process asks each role
ENOUGH = 0.8  # share of answers that can be read, below which a role is shown examples
LEAST = 0.2  # below which nothing can be learned from it
_ROLES = ("policy", "critic", "backup", "refine")
_OF_CRITIC = ("critique", "evaluation", "future", "correctness")
_OF_BACKUP = ("backup", "backup_terminated", "backup_future", "backup_future_terminated", "backup_correctness")


class WorkedExamples:
    """
    Ask each role about the first transitions, and show worked examples to those that seldom keep to their form
    (`examples="auto"`). Small models need them; they cost a longer prompt.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles. Whoever shares their prompts sees the examples, too.
        is_on (`bool`):
            Whether anything is looked at.
    """

    def __init__(self, roles: Roles, is_on: bool):
        self.roles = roles
        self.is_due = is_on
        self._shown: list[str] = []

    def choose(self, episodes: list[Episode], num_samples: int, seed: int, device: torch.device) -> str:
        """
        Choose by the answers to questions about a few transitions of the first episodes. Returns a forecast: how long
        it takes to ask as much about each of `num_samples`. All processes call this with the initial weights; the
        random state of training does not change.

        Raises:
            RunRefused: If a role cannot be read, with examples either.
        """
        self.is_due = False
        transitions = [transition for episode in episodes for transition in episode.transitions]
        transitions = transitions[:: max(1, len(transitions) // NUM_STEPS)][:NUM_STEPS]
        with self.roles.aside(seed, device):
            start = time.perf_counter()
            first, num_cut, num_tokens = self._rates(transitions, _ROLES)
            seconds = time.perf_counter() - start
            last = first
            weak = [role for role, rate in first.items() if rate < ENOUGH]
            names = self._prompts_of(weak)
            if names:
                self._show(names)
                last, num_cut, _ = self._rates(transitions, [role for role in _ROLES if role in {*weak, "refine"}])
        if f"format_{self.roles.actions.name}" in names:
            last["policy"] = max(last["policy"], ENOUGH)  # its states are older than the examples
        self._show([])
        self._show(self._prompts_of([role for role, rate in first.items() if rate < min(ENOUGH, last.get(role, 1.0))]))
        last = {role: max(rate, last.get(role, 0.0)) for role, rate in first.items()}
        if self._shown:
            shown = ", ".join(f"{role} {rate:.2f}, with them {last[role]:.2f}" for role, rate in first.items())
            logger.warning(f"`examples='auto'`: worked examples are shown. Answers that can be read: {shown}.")
        lost = [f"{role} ({rate:.0%})" for role, rate in last.items() if rate < LEAST]
        if lost:
            remedy = (
                "Use a model that follows instructions better, adapt the prompts (`prompts`), or set `action_format`"
            )
            if num_cut:
                remedy = (
                    f"Raise `max_completion_length` ({self.roles.options.max_completion_length}), at which "
                    f"{num_cut} answers were cut off; a model that thinks before it answers needs thousands of "
                    "tokens, or its template's option to turn thinking off in `chat_template_kwargs`"
                )
            raise RunRefused(
                f"Hardly any answer can be read of: {', '.join(lost)}. Nothing could be learned from it, and nothing "
                f"was trained. {remedy}; `examples='given'` trains all the same."
            )
        return _forecast(num_samples, len(transitions), num_tokens, seconds)

    def _rates(self, transitions: list[Transition], names: Collection[str]) -> tuple[dict[str, float], int, int]:
        """
        Return the share of the answers of each named role, over all processes, that can be read, how many answers of
        this process reached the limit of tokens, and how many tokens it wrote.
        """
        roles, state_actions = self.roles, [transition.state_action for transition in transitions]
        answers: dict[str, list[Answer]] = {}
        if "critic" in names or "refine" in names:
            answers["critic"] = critiques(roles, state_actions)
        if "policy" in names:
            answers["policy"] = roles.act([transition.state for transition in transitions])
        if "backup" in names:
            questions = backup_questions(roles, transitions, "monte_carlo")
            answers["backup"] = write_targets(roles, transitions, questions)
        if "refine" in names:
            pairs = zip(state_actions, answers["critic"], strict=True)
            readable = [(prompt, critique) for prompt, critique in pairs if critique.parsed is not None]
            answers["refine"] = ask_refined(roles, *map(list, zip(*readable, strict=True))) if readable else []
        given = [answer for of in answers.values() for answer in of]
        counted = gather_object(
            [{role: (sum(a.parsed is not None for a in of), len(of)) for role, of in answers.items()}]
        )
        sums = {role: [sum(numbers) for numbers in zip(*(c[role] for c in counted), strict=True)] for role in answers}
        rates = {role: readable / asked for role, (readable, asked) in sums.items() if asked}
        return rates, sum(not answer.finished for answer in given), sum(len(answer.token_ids) for answer in given)

    def _prompts_of(self, names: list[str]) -> list[str]:
        """Return the prompts of roles for which there are worked examples, and none of the user's own."""
        of_action = (f"format_{self.roles.actions.name}",)
        of_role = {"policy": of_action, "refine": of_action, "critic": _OF_CRITIC, "backup": _OF_BACKUP}
        prompts = dict.fromkeys(prompt for role in names for prompt in of_role[role])
        return [
            prompt for prompt in prompts if prompt in WORKED_EXAMPLES and not self.roles.prompts.examples.get(prompt)
        ]

    def _show(self, names: list[str]) -> None:
        examples = self.roles.prompts.examples
        for name in self._shown:
            del examples[name]
        examples.update({name: WORKED_EXAMPLES[name] for name in names})
        self._shown = names

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"is_due": self.is_due, "shown": self._shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`~WorkedExamples.state_dict`]."""
        self.is_due = state["is_due"]
        self._show(state["shown"])


def _forecast(num_samples: int, num_asked: int, num_tokens: int, seconds: float) -> str:
    """Say how long the first iteration will take, if its answers are as long and as fast as the first ones."""
    of_sample = 1.25 * num_tokens / max(1, num_asked)  # besides these four answers the successor model's
    minutes = timedelta(seconds=round(num_samples * of_sample * seconds / max(1, num_tokens)))
    return (
        f"first iteration: {num_samples:,} samples, up to {5 * num_samples:,} answers of the roles, about "
        f"{num_samples * of_sample:,.0f} tokens, {minutes} at the speed of the first {4 * num_asked} answers"
    )
