# SPDX-License-Identifier: Apache-2.0

"""Look before training: which roles keep to their form, and which need worked examples."""

import logging
from typing import Any

import torch
from accelerate.utils import gather_object

from ..prompts import WORKED_EXAMPLES
from ..types import Episode, RunRefused, Transition
from .backup import backup_questions, write_targets
from .critic import critiques
from .refinement import ask_refined
from .roles import Roles


logger = logging.getLogger(__name__)

NUM_STEPS = 8  # about which each process asks each role
ENOUGH = 0.8  # share of answers that can be read, below which a role is shown examples
LEAST = 0.2  # below which nothing can be learned from it
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

    def choose(self, episodes: list[Episode], seed: int, device: torch.device) -> None:
        """
        Choose by the answers to questions about a few transitions of the first episodes. All processes call this with
        the initial weights; the random state of training does not change.

        Raises:
            RunRefused: If a role cannot be read, with examples either.
        """
        self.is_due = False
        transitions = [transition for episode in episodes for transition in episode.transitions]
        transitions = transitions[:: max(1, len(transitions) // NUM_STEPS)][:NUM_STEPS]
        with self.roles.aside(seed, device):
            first, num_cut = self._rates(transitions)
            last = first
            names = self._prompts_of([role for role, rate in first.items() if rate < ENOUGH])
            if names:
                self._show(names)
                last, num_cut = self._rates(transitions)
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

    def _rates(self, transitions: list[Transition]) -> tuple[dict[str, float], int]:
        """
        Return the share of the answers of each role, over all processes, that can be read, and how many answers of
        this process reached the limit of tokens.
        """
        roles, state_actions = self.roles, [transition.state_action for transition in transitions]
        judged = critiques(roles, state_actions)
        readable = [pair for pair in zip(state_actions, judged, strict=True) if pair[1].parsed is not None]
        answers = {
            "policy": roles.act([transition.state for transition in transitions]),
            "critic": judged,
            "backup": write_targets(roles, transitions, backup_questions(roles, transitions, "monte_carlo")),
            "refine": ask_refined(roles, [prompt for prompt, _ in readable], [critique for _, critique in readable]),
        }
        num_cut = sum(not answer.finished for of in answers.values() for answer in of)
        counted = gather_object(
            [{role: (sum(a.parsed is not None for a in of), len(of)) for role, of in answers.items()}]
        )
        sums = {role: [sum(numbers) for numbers in zip(*(c[role] for c in counted), strict=True)] for role in answers}
        return {role: readable / asked for role, (readable, asked) in sums.items() if asked}, num_cut

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
