# SPDX-License-Identifier: Apache-2.0

"""Better actions without training: refinement after critique, and a choice among candidates by verdict scores."""

from dataclasses import dataclass, field, replace

import torch

from ..generation.generator import Sampling
from ..method.backup import bellman_targets
from ..method.critic import critiques, judge_actions, judge_critiques, sample_futures
from ..method.randomness import random_generator
from ..method.refinement import Attempt, ask_refined, refine_attempts, stored_attempts
from ..method.roles import Roles
from ..prompts import parse_critique, parse_future
from ..types import Answer, Judgement, Prompt, Refinement, Transition
from .guard import Guard


MAX_REFUSALS = 3  # of the actions in one state


@dataclass(frozen=True)
class Round:
    """One round of critique and refinement."""

    attempt: str  # the action that was judged
    critique: Answer
    refined: Answer | None  # `None` if it or the critique could not be parsed, or if the attempt is called the best


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
    """Answer states with the actions of [`choose_actions`], for `play_episodes`. Only candidates are scored."""
    _check_range("refine", refine, 0)
    choices = choose_actions(roles, prompts, 0, num_candidates, alpha, sampling, seeds)
    answers = [choice.answer for choice in choices]
    for i, rounds in _rounds(roles, prompts, answers, refine).items():
        answers[i] = next((one.refined for one in reversed(rounds) if one.refined is not None), answers[i])
    return [replace(answer, prompt=prompt) for answer, prompt in zip(answers, prompts, strict=True)]


def act_guarded(
    roles: Roles, prompts: list[Prompt], seeds: list[int], guard: Guard, sampling: Sampling
) -> list[Answer]:
    """
    Answer states, for [`~episodes.rollout.play_episodes`], and up to [`MAX_REFUSALS`] times again where the guard
    blocks the action: greedy policies at temperature 1, as they would only repeat it. The last action is taken.
    """
    answers, again = roles.act(prompts, seeds, sampling), replace(sampling, temperature=sampling.temperature or 1.0)
    open_ = [i for i, answer in enumerate(answers) if answer.parsed is not None]
    for attempt in range(1, 1 + MAX_REFUSALS):
        judged = judge_actions(roles, [roles.builder.continued(prompts[i], answers[i]) for i in open_])
        blocked = [i for i, judgement in zip(open_, judged, strict=True) if guard.decide(judgement) == "block"]
        others = roles.act([prompts[i] for i in blocked], [seeds[i] + attempt for i in blocked], again)
        for i, answer in zip(blocked, others, strict=True):
            answers[i] = answer
        open_ = [i for i in blocked if answers[i].parsed is not None]
    return answers


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
    policy's own, and `seeds`, one for each state, torch's global generator. Raise a `ValueError` if a number is out of
    range.
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
    found = [one.critique for of_action in refined.values() for one in of_action]
    judgements = iter(judge_critiques(roles, found))
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
    """Refine the answers that are actions, see [`refinement_rounds`]."""
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


def refinement_rounds(roles: Roles, attempts: dict[int, Attempt], num_rounds: int) -> dict[int, list[Round]]:
    """
    Refine actions in at most so many rounds of critique and refinement (m of section 4.2), at test time. The
    refinement policy sees all attempts and their critiques; the critic judges each attempt alone. An action that the
    critic calls the best is kept, and not judged again. Return the rounds of each action, in order.
    """
    rounds: dict[int, list[Round]] = {i: [] for i in attempts}
    together = {i: attempt.state_action for i, attempt in attempts.items()}  # with the attempts before it
    for _ in range(num_rounds):
        found = critiques(roles, [attempt.state_action for attempt in attempts.values()])
        attempts = {i: replace(a, critique=c) for (i, a), c in zip(attempts.items(), found, strict=True)}
        open_ = [i for i, attempt in attempts.items() if attempt.is_readable and not attempt.is_best]
        answers = ask_refined(roles, [together[i] for i in open_], [attempts[i].critique for i in open_])
        refined = {i: answer for i, answer in zip(open_, answers, strict=True) if answer.parsed is not None}
        for i, attempt in attempts.items():
            rounds[i].append(Round(attempt.action, attempt.critique, refined.get(i)))
        again = [i for i in refined if not attempts[i].critique.parsed.optimal]
        attempts = {i: Attempt.of(roles, attempts[i].state, refined[i]) for i in again}
        together = {i: roles.builder.continued(refined[i].prompt, refined[i]) for i in attempts}
    return rounds


def refine_in_hindsight(roles: Roles, transitions: list[Transition]) -> tuple[list[Answer], list[Refinement | None]]:
    """
    Judge stored actions knowing what followed in their whole episodes, and refine them with that as their critique. Of
    an episode that was cut it is known up to the cut, and guessed from there. Return the judgements, Monte Carlo
    targets, and the refinements, see [`refine_attempts`]. Raise a `ValueError` if critiques weigh several futures: a
    judgement is one future then, without a verdict.
    """
    if roles.options.num_futures > 1:
        raise ValueError(
            "An action is refined in hindsight by the verdict of its judgement, which has none with "
            f"`num_futures={roles.options.num_futures}`. Use a model whose critiques weigh one future."
        )
    targets = bellman_targets(roles, transitions, "monte_carlo")
    return targets, refine_attempts(roles, stored_attempts(roles, transitions, targets))


def predict_futures(roles: Roles, state_actions: list[Prompt], k: int) -> list[list[str]]:
    """
    Sample k futures of each action, d ~ M(. | s, a): from the successor model (p_pred), or, where the critic answers
    with future and verdict in one (k = 1 in training), from its critiques. A greedy role samples at temperature 1.
    Return those that could be parsed. Raise a `ValueError` if `k` is less than 1, or a task is a single step, which
    has no future.
    """
    if k < 1:
        raise ValueError(f"`k` must be at least 1, got {k}.")
    if roles.options.single_step:
        raise ValueError("With `single_step=True` the critic judges correctness and predicts no future.")
    role, parse = ("critic", parse_critique) if roles.options.num_futures == 1 else ("successor", parse_future)
    sampling = roles.samplings[role]
    if sampling.temperature == 0 and k > 1:
        sampling = replace(sampling, temperature=1.0)
    return sample_futures(roles, state_actions, k, role, parse, sampling)
