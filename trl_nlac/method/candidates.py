# SPDX-License-Identifier: Apache-2.0

"""Several refined actions, of which the critic chooses one."""

from dataclasses import replace
from itertools import islice

from ..types import Refinement, Transition
from .critic import judge_actions
from .roles import Roles


def choose_refined(
    roles: Roles, transitions: list[Transition], refinements: list[Refinement | None], num_candidates: int
) -> list[Refinement | None]:
    """
    Sample more refined actions a_t^r ~ pi^r(. | s_t, a_t, Q_L(s_t, a_t)), and choose the one with the highest verdict
    score, log P(Yes) - log P(No) in a critique of its own. A critique that says what not to do leaves refinement to
    chance; the choice does not. The paper takes the first (equation 6).

    Call it with the policy's weights, on all processes. Actions that their critiques call the best stay as they are.

    Args:
        roles ([`~method.roles.Roles`]):
            The roles. They note the share of choices that are not the first refined action.
        transitions (`list[Transition]`):
            The states.
        refinements (`list[Refinement | None]`):
            The refinement in each state, from [`~method.refinement.refine_actions`].
        num_candidates (`int`):
            Number of refined actions in each state. A greedy refinement policy samples the others at temperature 1.

    Returns:
        `list[Refinement | None]`: with the chosen actions. Where no critique can be read, the first stays.
    """
    found = {i: r for i, r in enumerate(refinements) if r is not None and not r.critique.optimal}
    sampling = roles.samplings["refine"]
    if sampling.temperature == 0:
        sampling = replace(sampling, temperature=1.0)
    prompts = [r.refined_action.prompt for r in found.values() for _ in range(num_candidates - 1)]
    sampled = roles.ask("refine", prompts, sampling=sampling)
    answers = zip(sampled, roles.correct_reasoning(sampled, "correct_refine"), strict=True)
    candidates: list[tuple[int, Refinement]] = []
    for i, refinement in found.items():
        actions = {refinement.refined_action.parsed: refinement}
        for own, other in islice(answers, num_candidates - 1):
            if other.parsed is not None:
                actions.setdefault(other.parsed, replace(refinement, refined_action=other, sampled_action=own))
        candidates += [(i, candidate) for candidate in actions.values() if len(actions) > 1]
    states = [(transitions[i].state, candidate.refined_action) for i, candidate in candidates]
    judgements = judge_actions(roles, [roles.builder.continued(*state_action) for state_action in states])
    scores: dict[int, float] = {}
    chosen = list(refinements)
    for (i, candidate), judgement in zip(candidates, judgements, strict=True):
        if judgement is not None and judgement.verdict_score > scores.get(i, float("-inf")):
            scores[i] = judgement.verdict_score
            chosen[i] = candidate
    roles.tally.note("refine/other_chosen_rate", [float(chosen[i] is not found[i]) for i in scores])
    return chosen
