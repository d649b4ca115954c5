# SPDX-License-Identifier: Apache-2.0

"""The language critic: critiques, futures, and a critique as a number."""

from collections.abc import Callable

import torch

from ..generation.generator import Sampling
from ..prompts import numbered, parse_correctness, parse_critique, parse_future
from ..types import Answer, Critique, Judgement, Prompt, Transition
from .roles import Roles


def critic_prompt(roles: Roles, state_action: Prompt) -> Prompt:
    """
    Ask the question that the critic is trained to answer about (s_t, a_t), without the next observation and the score:
    future and verdict in one, p_eval (k = 1); a future alone, p_pred (k > 1); or the verdict alone, where a task is a
    single step.
    """
    if roles.options.num_futures > 1:  # never of a single step
        return roles.builder.follow_up(state_action, roles.prompts.question("future"))
    return judgement_prompt(roles, state_action)


def judgement_prompt(roles: Roles, state_action: Prompt) -> Prompt:
    """Ask for a critique in a conversation that continues after it."""
    name = "correctness" if roles.options.single_step else "critique"
    return roles.builder.follow_up(state_action, roles.prompts.question(name))


def critiques(roles: Roles, state_actions: list[Prompt], sampling: Sampling | None = None) -> list[Answer]:
    """
    Sample Q_L(s_t, a_t), a critique of each action (equation 3), each parsed into a [`~types.Critique`], or `None` if
    it breaks the format. With k = 1 the future and its evaluation are one generation. With k > 1 the successor model
    predicts k futures, d_t^(i) ~ M(. | s_t, a_t), and the evaluator E reads them all.
    """
    single_step, k = roles.options.single_step, roles.options.num_futures
    if single_step or k == 1:
        parse = parse_correctness if single_step else parse_critique
        return roles.ask("critic", [critic_prompt(roles, prompt) for prompt in state_actions], parse, sampling)
    predicted = sample_futures(roles, state_actions, k, "successor", parse_future)
    questions = [
        roles.builder.follow_up(state_action, roles.prompts.question("evaluation", futures=numbered(futures)))
        for state_action, futures in zip(state_actions, predicted, strict=True)
    ]
    return roles.ask("critic", questions, parse_critique, sampling)


def sample_futures(
    roles: Roles,
    state_actions: list[Prompt],
    k: int,
    role: str,
    parse: Callable[[str], Critique | None],
    sampling: Sampling | None = None,
) -> list[list[str]]:
    """Sample k futures of each action as `role`; return those that could be parsed."""
    prompts = [critic_prompt(roles, state_action) for state_action in state_actions for _ in range(k)]
    answers = roles.ask(role, prompts, parse, sampling)
    groups = [answers[i : i + k] for i in range(0, len(answers), k)]
    return [[answer.parsed.future for answer in group if answer.parsed is not None] for group in groups]


def judge_actions(roles: Roles, state_actions: list[Prompt]) -> list[Judgement | None]:
    """Sample critiques with their verdict scores; `None` where a critique breaks its format."""
    return judge_critiques(roles, critiques(roles, state_actions))


def judge_aside(roles: Roles, transitions: list[Transition]) -> list[Judgement | None]:
    """Judge the stored actions of transitions. Metrics and random state stay as they were."""
    if not transitions:
        return []
    # The seeds of answers come from torch's global generator.
    with roles.tally.unrecorded(), torch.random.fork_rng(devices=[]):
        return judge_actions(roles, [transition.state_action for transition in transitions])


def judge_critiques(roles: Roles, answers: list[Answer]) -> list[Judgement | None]:
    """Score the verdicts of critiques; `None` where a critique broke its format."""
    readable = [i for i, answer in enumerate(answers) if answer.parsed is not None]
    judgements: list[Judgement | None] = [None] * len(answers)
    for i, score in zip(readable, verdict_scores(roles, [answers[i] for i in readable]), strict=True):
        judgements[i] = Judgement(answers[i].text, answers[i].parsed.optimal, score)
    return judgements


def verdict_scores(roles: Roles, critiques: list[Answer]) -> list[float]:
    """
    Score verdicts: log P(Yes) - log P(No) at the place of the verdict, given the predicted future. This is Q(s, a) of
    LAC (https://huggingface.co/papers/2506.06376). A verdict in other words, such as "Not optimal", is scored by a
    "Yes" and a "No" in its place, so that the length of a sentence does not matter. Scores are in nats, of the weights
    that the roles have now. Where processes score together, all of them call this, also with no critiques.
    """
    prompts, completions = [], []
    for answer in critiques:
        token_ids = list(answer.token_ids)
        start, end = roles.chat.token_span(token_ids, *answer.parsed.verdict_span)
        prompts += [roles.builder.opened(answer.prompt).ids + token_ids[:start]] * 2
        completions += _verdict_pair(roles, answer, token_ids[start:end])
    logps = roles.score(prompts, completions)
    return [yes - no for yes, no in zip(logps[::2], logps[1::2], strict=True)]


def _verdict_pair(roles: Roles, answer: Answer, verdict_ids: list[int]) -> list[list[int]]:
    """The tokens of "Yes" and of "No" in the place of a verdict and in its case; as sampled for the one it is."""
    tokenizer, words = roles.chat.tokenizer, answer.text[slice(*answer.parsed.verdict_span)]
    piece = tokenizer.decode(verdict_ids)  # with a space or marks in the same tokens
    pair = []
    for word in ("Yes", "No"):
        word = word.lower() if words.islower() else word.upper() if words.isupper() else word
        is_said = words.lower() == word.lower()
        written = piece.replace(words, word)
        pair.append(verdict_ids if is_said else tokenizer(written, add_special_tokens=False)["input_ids"])
    return pair
