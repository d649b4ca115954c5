# SPDX-License-Identifier: Apache-2.0

"""Look before training: do the roles keep to their forms, and do worked examples help?"""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object

from ..prompts import WORKED_EXAMPLES, WORKED_SOLUTIONS
from ..types import Answer, Episode, RunRefused
from .backup import backup_questions, write_targets
from .critic import critiques
from .refinement import ask_refined
from .roles import Roles
from .states import opening_ids


logger = logging.getLogger(__name__)

NUM_STEPS = 8  # about which each process asks each role
ENOUGH = 0.8  # share of answers that can be read, below which a role is shown examples
LEAST = 0.2  # below which nothing can be learned from it


class Look(NamedTuple):
    """
    What the roles answer about a few transitions.

    Args:
        rates (`dict[str, float]`):
            By role, the share of its answers, over all processes, that can be read and do not repeat the prompt.
        num_asked (`int`):
            Number of transitions of this process.
        num_tokens (`int`), num_cut (`int`):
            Number of tokens of its answers, and of answers that reached their limit.
        seconds (`float`):
            How long it took.
    """

    rates: dict[str, float]
    num_asked: int
    num_tokens: int
    num_cut: int
    seconds: float

    @property
    def value(self) -> float:
        """The mean rate, in which more than enough counts as enough."""
        return sum(min(rate, ENOUGH) for rate in self.rates.values()) / len(self.rates)

    def forecast(self, num_samples: int) -> str:
        """Say how long an iteration takes if its answers are as long and as fast as these."""
        of_sample = 1.25 * self.num_tokens / max(1, self.num_asked)  # besides four answers the successor model's
        minutes = timedelta(seconds=round(num_samples * of_sample * self.seconds / max(1, self.num_tokens)))
        return (
            f"first iteration: {num_samples:,} samples, up to {5 * num_samples:,} answers of the roles, about "
            f"{num_samples * of_sample:,.0f} tokens, {minutes} at the speed of the first answers"
        )

    def check(self, max_completion_length: int) -> None:
        """Raise [`RunRefused`] if hardly any answer of a role can be used."""
        lost = [f"{role} ({rate:.0%})" for role, rate in self.rates.items() if rate < LEAST]
        remedy = "Use a model that follows instructions better, adapt the prompts (`prompts`), or set `action_format`"
        if self.num_cut >= self.num_asked:  # a quarter of all
            remedy = (
                f"Raise `max_completion_length` ({max_completion_length}), at which {self.num_cut} answers were cut "
                "off; a model that thinks before it answers needs thousands of tokens, or its template's option to "
                "turn thinking off in `chat_template_kwargs`"
            )
        if lost:
            raise RunRefused(
                f"Hardly any answer can be used of: {', '.join(lost)}. Nothing could be learned from it, and nothing "
                f"was trained. {remedy}; `examples='given'` trains all the same."
            )


class WorkedExamples:
    """
    Look at how the roles answer before they are trained, and show worked examples to a model that seldom keeps to
    their forms (`examples="auto"`). Small models need them; they cost longer prompts. Whoever shares the prompts of
    `roles` sees the examples, too.
    """

    def __init__(self, roles: Roles, is_on: bool):
        self.roles = roles
        self.is_due = is_on

    @property
    def are_shown(self) -> bool:
        """Whether the roles see examples, chosen here or given."""
        return bool(self.roles.prompts.examples)

    def choose(
        self, episodes: list[Episode], begin_again: Callable[[], list[Episode]], seed: int, device: torch.device
    ) -> Look:
        """
        Look at episodes, and if a role seldom keeps to its form, `begin_again`, which plays or reads others, with the
        examples. They stay if they help. All processes call this with the initial weights; the random state of
        training does not change. Raise [`RunRefused`] if hardly any answer of a role can be used, with examples
        either.
        """
        self.is_due = False
        look = self.look(episodes, seed, device)
        is_weak = any(rate < ENOUGH for rate in look.rates.values())
        if is_weak and not self.are_shown and self._show(episodes[0]):
            shown = self.look(begin_again(), seed, device)
            if shown.value > look.value:
                rates = ", ".join(
                    f"{role} {look.rates.get(role, 0.0):.2f}, then {rate:.2f}" for role, rate in shown.rates.items()
                )
                logger.warning(f"`examples='auto'` shows worked examples. Answers that can be used: {rates}.")
                look = shown
            else:
                self.roles.prompts.examples.clear()
        look.check(self.roles.options.max_completion_length)
        return look

    def _show(self, episode: Episode) -> bool:
        """Show the examples, if there are some, and on every process a task keeps half of a prompt beside them."""
        roles, options = self.roles, self.roles.options
        if options.num_futures == 1:
            roles.prompts.examples[:] = WORKED_SOLUTIONS if options.single_step else WORKED_EXAMPLES
            opening = opening_ids(roles.actions, roles.prompts, list(episode.opening), list(episode.tools))
            fits = not options.max_prompt_length or len(opening) <= options.max_prompt_length // 2
            if not all(gather_object([fits])):  # processes play and look together
                roles.prompts.examples.clear()
        return self.are_shown

    def look(self, episodes: list[Episode], seed: int, device: torch.device) -> Look:
        """Ask each role about a few transitions of episodes. What was observed is the backup's future: it is there."""
        transitions = [transition for episode in episodes for transition in episode.transitions]
        transitions = transitions[:: max(1, len(transitions) // NUM_STEPS)][:NUM_STEPS]
        start, roles = time.perf_counter(), self.roles
        state_actions = [transition.state_action for transition in transitions]
        with roles.aside(seed, device):
            judged = critiques(roles, state_actions)
            readable = [pair for pair in zip(state_actions, judged, strict=True) if pair[1].parsed is not None]
            answers = {
                "policy": roles.act([transition.state for transition in transitions]),
                "critic": judged,
                "backup": write_targets(roles, transitions, backup_questions(roles, transitions, "monte_carlo")),
                "refine": ask_refined(roles, [prompt for prompt, _ in readable], [given for _, given in readable]),
            }
        counted = gather_object([{role: (self._num_usable(of), len(of)) for role, of in answers.items()}])
        sums = {role: [sum(numbers) for numbers in zip(*(c[role] for c in counted), strict=True)] for role in answers}
        given = [answer for of in answers.values() for answer in of]
        return Look(
            {role: usable / asked for role, (usable, asked) in sums.items() if asked},
            len(transitions),
            sum(len(answer.token_ids) for answer in given),
            sum(not answer.finished for answer in given),
            time.perf_counter() - start,
        )

    def _num_usable(self, answers: list[Answer]) -> int:
        repeated = self.roles.prompts.repeated_in([answer.text for answer in answers])
        return sum(a.parsed is not None and not r for a, r in zip(answers, repeated, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"is_due": self.is_due, "shown": list(self.roles.prompts.examples)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from [`~WorkedExamples.state_dict`]."""
        self.is_due = state["is_due"]
        self.roles.prompts.examples[:] = state["shown"]
