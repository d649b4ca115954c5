# SPDX-License-Identifier: Apache-2.0

"""Better actions without training: refinement after critique, and a choice among candidates by verdict scores."""

from dataclasses import dataclass, field, replace

import torch

from ..generation.generator import Sampling
from ..method.critic import judge_actions, judge_critiques
from ..method.randomness import random_generator
from ..method.refinement import Attempt, Round, refinement_rounds
from ..method.roles import Roles
from ..types import Answer, Judgement, Prompt


@dataclass
class Choice:
    """A chosen action and its history."""

    answer: Answer  # the final answer; parsed into `None` if it is not an action
    judgement: Judgement | None = None  # the critic's judgement of it, if there is one
    # earlier actions that were refined, with their judgements
    attempts: list[tuple[str, Judgement]] = field(default_factory=list)
    candidates: list[tuple[str, Judgement | None]] = field(default_factory=list)  # actions among which it was chosen


def act_better(
    roles: Roles,
    prompts: list[Prompt],
    seeds: list[int],
    refine: int = 0,
    num_candidates: int = 1,
    alpha: float = 1.0,
    sampling: Sampling | None = None,
) -> list[Answer]:
    """
    Answer states with the actions of [`choose_actions`], for [`~episodes.rollout.play_episodes`]. Only candidates are
    scored.
    """
    _check_range("refine", refine, 0)
    choices = choose_actions(roles, prompts, 0, num_candidates, alpha, sampling, seeds)
    answers = [choice.answer for choice in choices]
    for i, rounds in _rounds(roles, prompts, answers, refine).items():
        answers[i] = next((one.refined for one in reversed(rounds) if one.refined is not None), answers[i])
    return [replace(answer, prompt=prompt) for answer, prompt in zip(answers, prompts, strict=True)]


def choose_actions(
    roles: Roles,
    prompts: list[Prompt],
    refine: int = 0,
    num_candidates: int = 1,
    alpha: float = 1.0,
    sampling: Sampling | None = None,
    seeds: list[int] | None = None,
) -> list[Choice]:
    """
    Choose an action in each state; the numbers are those of [`~agent.agent.NLACAgent.act`]. `sampling` replaces the
    policy's own, and `seeds`, one for each state, torch's global generator.

    Raises:
        ValueError: If a number is out of range.
    """
    _check_range("refine", refine, 0)
    _check_range("num_candidates", num_candidates, 1)
    _check_range("alpha", alpha, 0)
    repeated = [prompt for prompt in prompts for _ in range(num_candidates)]
    seeds = seeds and [seed + i for seed in seeds for i in range(num_candidates)]
    answers = roles.act(repeated, seeds, sampling)
    groups = [answers[i : i + num_candidates] for i in range(0, len(answers), num_candidates)]
    choices = _chosen(roles, groups, alpha) if num_candidates > 1 else [Choice(group[0]) for group in groups]
    refine_choices(roles, prompts, choices, refine)
    return choices


def refine_choices(roles: Roles, prompts: list[Prompt], choices: list[Choice], rounds: int) -> None:
    """Refine the action in each state. An action that the critic calls the best is kept."""
    if not rounds:
        return
    refined = _rounds(roles, prompts, [choice.answer for choice in choices], rounds)
    critiques = [one.critique for of_action in refined.values() for one in of_action]
    judgements = iter(judge_critiques(roles, critiques))
    for i, of_action in refined.items():
        for one in of_action:
            choices[i].judgement = next(judgements)
            if one.refined is not None:
                choices[i].attempts.append((one.attempt, choices[i].judgement))
                choices[i].answer, choices[i].judgement = one.refined, None


def judge_choices(roles: Roles, prompts: list[Prompt], choices: list[Choice]) -> None:
    """Judge the action in each state that has no judgement yet."""
    open_ = [i for i, choice in enumerate(choices) if choice.judgement is None and choice.answer.parsed is not None]
    judged = judge_actions(roles, [roles.builder.continued(prompts[i], choices[i].answer) for i in open_])
    for i, judgement in zip(open_, judged, strict=True):
        choices[i].judgement = judgement


def _check_range(name: str, value: float, least: int) -> None:
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}.")


def _rounds(roles: Roles, prompts: list[Prompt], answers: list[Answer], num_rounds: int) -> dict[int, list[Round]]:
    """Refine the answers that are actions, see [`~method.refinement.refinement_rounds`]."""
    attempts = {
        i: Attempt.of(roles, prompt, answer)
        for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        if answer.parsed is not None
    }
    return refinement_rounds(roles, attempts, num_rounds)


def _chosen(roles: Roles, groups: list[list[Answer]], alpha: float) -> list[Choice]:
    """Choose one action of each group by the verdict scores."""
    actions = [action for group in groups for action in group if action.parsed is not None]
    state_actions = [roles.builder.continued(action.prompt, action) for action in actions]
    judged = dict(zip(map(id, actions), judge_actions(roles, state_actions), strict=True))
    choices = []
    for group in groups:
        group = [action for action in group if action.parsed is not None] or group[:1]
        judgements = [judged.get(id(action)) for action in group]
        scores = torch.tensor([judgement.verdict_score if judgement else -torch.inf for judgement in judgements])
        if alpha == 0 or scores.isinf().all():  # any, or no critique could be parsed
            scores = torch.zeros(len(group))
        i = int(torch.multinomial(torch.softmax(alpha * scores, 0), 1, generator=random_generator()))
        candidates = [(action.parsed, judgement) for action, judgement in zip(group, judgements, strict=True)]
        choices.append(Choice(group[i], judgements[i], candidates=candidates))
    return choices
