# SPDX-License-Identifier: Apache-2.0

"""Compare critiques with the truth, in worlds that have an oracle."""

from ..episodes.pool import EnvironmentPool
from ..episodes.rollout import replay
from ..episodes.text_environment import Oracle
from ..generation.generator import Sampling
from ..method.critic import critiques
from ..method.refinement import refine_attempts, stored_attempts
from ..method.roles import Roles
from ..types import Critique, Refinement, Transition


def oracle_metrics(oracle: Oracle, judged: list[tuple[Transition, str, Critique, str | None]]) -> dict[str, float]:
    """
    Compare critiques with the truth. `judged` has transitions for their states, an action there, its critique, and the
    refined action.

    The metrics are `oracle/future_accuracy`: share of futures that begin right and stay possible to their end.
    `oracle/verdict_yes_rate`: share of "Yes" among best actions. `oracle/verdict_no_rate`: share of "No" among the
    others; an always-negative critic has 1 here and 0 there. `oracle/refined_better_rate`: share of refined actions
    that are better than the action, among actions that are not the best. Rates without a case are left out.
    """
    futures, yes, no, better = [], [], [], []
    for transition, action, critique, refined_action in judged:
        quality = oracle.quality(transition, action)
        futures.append(oracle.future_is_right(transition, action, critique.future))
        if quality >= 1 - 1e-9:
            yes.append(critique.optimal)
        else:
            no.append(not critique.optimal)
            better.append(refined_action is not None and oracle.quality(transition, refined_action) > quality + 1e-9)
    rates = {"future_accuracy": futures, "verdict_yes_rate": yes, "verdict_no_rate": no, "refined_better_rate": better}
    return {f"oracle/{name}": sum(values) / len(values) for name, values in rates.items() if values}


def judge_refinements(
    oracle: Oracle, transitions: list[Transition], refinements: list[Refinement | None]
) -> dict[str, float]:
    """Compute [`oracle_metrics`] of the critiques and refinements of a training iteration."""
    return oracle_metrics(
        oracle,
        [
            (transition, refinement.action, refinement.critique, refinement.refined_action.parsed)
            for transition, refinement in zip(transitions, refinements, strict=True)
            if refinement is not None and not transition.episode.is_log  # a log can come from another world
        ],
    )


def examine_critic(environments: EnvironmentPool, roles: Roles, num_probes: int, seed: int) -> dict[str, float]:
    """
    Compute [`oracle_metrics`] of greedy critiques and refinements of the oracle's probes, the share of critiques that
    can be read, and the share of probes at which the environment failed. An oracle without probes has none of them.
    """
    oracle = environments.oracle
    episodes = [replay(environments, roles, task, actions) for task, actions in oracle.probes(num_probes, seed)]
    transitions = [Transition(episode, len(episode.turns) - 1) for episode in episodes if episode is not None]
    greedy = {name: Sampling(roles.samplings[name].max_tokens, temperature=0.0) for name in ("critic", "refine")}
    found = critiques(roles, [transition.state_action for transition in transitions], greedy["critic"])
    attempts = stored_attempts(roles, transitions, found)
    refined = refine_attempts(roles, attempts, greedy["refine"])
    judged = [
        (transition, attempt.action, attempt.critique.parsed, refinement and refinement.refined_action.parsed)
        for transition, attempt, refinement in zip(transitions, attempts, refined, strict=True)
        if attempt.is_readable
    ]
    metrics = oracle_metrics(oracle, judged)
    if transitions:
        metrics["oracle/readable_rate"] = len(judged) / len(transitions)
    if episodes:
        metrics["oracle/failure_rate"] = episodes.count(None) / len(episodes)
    return metrics
