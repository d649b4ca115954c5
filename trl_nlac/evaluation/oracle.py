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

"""Checking what the critic says against the truth, in worlds that know it."""

from ..environments.base import Oracle
from ..environments.pool import EnvironmentPool
from ..episodes.recorder import replay_actions
from ..generation.base import Sampling
from ..method.critic import critiques
from ..method.refinement import Refinement
from ..method.roles import Roles
from ..prompts import Critique, render
from ..types import Transition


def oracle_metrics(oracle: Oracle, judged: list[tuple[Transition, str, Critique, str | None]]) -> dict[str, float]:
    """
    Compare critiques with the truth.

    Args:
        oracle ([`~environments.base.Oracle`]):
            The truth.
        judged (`list[tuple[Transition, str, Critique, str | None]]`):
            A transition for its state, an action there, its critique, and the refined action.

    Returns:
        `dict[str, float]`: `oracle/future_accuracy`: share of futures that begin right and stay possible to their end.
        `oracle/verdict_yes_rate`: share of "Yes" among best actions. `oracle/verdict_no_rate`: share of "No" among the
        others; an always-negative critic has 1 here and 0 there. `oracle/refined_better_rate`: share of refined actions
        that are better than the action, among actions that can be bettered. Rates without a case are left out.
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
    """[`oracle_metrics`] of what was just generated for training."""
    return oracle_metrics(
        oracle,
        [
            (transition, refinement.attempt, refinement.critique, refinement.refined_action.parsed)
            for transition, refinement in zip(transitions, refinements, strict=True)
            if refinement is not None and not transition.episode.is_log  # it may come from another world
        ],
    )


def examine_critic(environments: EnvironmentPool, roles: Roles, num_probes: int, seed: int) -> dict[str, float]:
    """[`oracle_metrics`] of greedy critiques and refinements of the oracle's own probes, half of them best actions."""
    oracle, probes = environments.oracle, environments.oracle.probes(num_probes, seed)
    episodes = [replay_actions(environments.example, task, actions, roles) for task, actions in probes]
    transitions = [Transition(episode, len(episode.turns) - 1) for episode in episodes]
    greedy = {name: Sampling(roles.samplings[name].max_tokens, temperature=0.0) for name in ("critique", "refine")}
    answers = critiques(roles, [transition.state_action for transition in transitions], sampling=greedy["critique"])
    readable = [i for i, answer in enumerate(answers) if answer.parsed is not None]
    question = render(roles.prompts.refine, action_format=roles.action_format)
    refined = roles.ask(
        "refine",
        [roles.follow_up(roles.continued(answers[i].prompt, answers[i]), question) for i in readable],
        roles.parse_action,
        sampling=greedy["refine"],
    )
    metrics = oracle_metrics(
        oracle,
        [
            (transitions[i], transitions[i].turn.action, answers[i].parsed, answer.parsed)
            for i, answer in zip(readable, refined, strict=True)
        ],
    )
    return {**metrics, "oracle/readable_rate": len(readable) / len(answers)}
