# SPDX-License-Identifier: Apache-2.0

"""
Which role has been lost? Let the initial and the trained weights play policy, critic and refinement policy in turn.

    python -m benchmarks.learning.run --tasks guess_the_number --methods nlac --seeds 0 --swaps 60 --cells runs/swaps
"""

from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any

from benchmarks import reporting
from trl_nlac import NLACTrainer
from trl_nlac.episodes.rollout import play_episodes
from trl_nlac.method.critic import critiques
from trl_nlac.method.refinement import refine_attempts, stored_attempts


WEIGHTS = ("initial", "trained")


def measure(trainer: NLACTrainer, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """
    Play tasks with either weights as the policy, judge all actions with either as the critic, and refine them with
    either as the refinement policy. A row for each combination has the share of "No" after which the action stays as
    it was, and the oracle's mean quality of actions and of refined actions.
    """
    oracle, roles = trainer.environments.oracle, trainer.roles

    def of(name: str) -> AbstractContextManager:
        return trainer.initial_weights.swapped_into(trainer.model) if name == "initial" else nullcontext()

    found_rows = []
    for policy in WEIGHTS:
        with of(policy), trainer._generating():
            episodes = play_episodes(trainer.environments, rows, roles)
        transitions = [transition for episode in episodes for transition in episode.transitions]
        for critic, refiner in product(WEIGHTS, WEIGHTS):
            with of(critic), trainer._generating():
                judged = critiques(roles, [transition.state_action for transition in transitions])
            attempts = stored_attempts(roles, transitions, judged)
            with of(refiner), trainer._generating():
                refined = refine_attempts(roles, attempts)
            found = [(t, r) for t, r in zip(transitions, refined, strict=True) if r is not None]
            criticised = [r for _, r in found if not r.critique.optimal]
            found_rows.append(
                {
                    "policy": policy,
                    "critic": critic,
                    "refinement": refiner,
                    "actions": len(found),
                    "repeats": _mean(r.refined_action.parsed == r.action for r in criticised),
                    "quality": _mean(oracle.quality(t, r.action) for t, r in found),
                    "refined_quality": _mean(oracle.quality(t, r.refined_action.parsed) for t, r in found),
                }
            )
    return found_rows


def _mean(values) -> float | None:
    values = [float(value) for value in values]
    return sum(values) / len(values) if values else None


def table(rows: list[dict[str, Any]]) -> str:
    """Write the rows of [`measure`] as a table."""
    names = ["policy", "critic", "refinement", "actions", "criticised and kept", "quality", "refined"]
    shown = [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    return reporting.table(names, shown)
