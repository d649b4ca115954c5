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

"""The language critic, and the language Bellman backup that writes its targets."""

import re
from dataclasses import replace
from typing import NamedTuple

from ..generation.base import Sampling
from ..prompts import numbered, parse_correctness, parse_critique, parse_future, parse_text, render
from ..types import Answer, Prompt, Transition
from .reasoning import correct_reasoning
from .roles import Roles


# The critic


def critic_prompt(roles: Roles, state_action: Prompt) -> Prompt:
    """
    What the critic is trained to answer about (s_t, a_t), without the next observation and the score: future and verdict
    in one, p_eval (k = 1); a future alone, p_pred (k > 1); or the verdict alone, where a task is a single step.
    """
    if roles.single_step:
        return roles.follow_up(state_action, roles.prompts.correctness)
    return roles.follow_up(state_action, roles.prompts.critique if roles.num_futures == 1 else roles.prompts.future)


def judgement_prompt(roles: Roles, state_action: Prompt) -> Prompt:
    """The question before a critique in a conversation that goes on after it."""
    return roles.follow_up(state_action, roles.prompts.correctness if roles.single_step else roles.prompts.critique)


def critiques(roles: Roles, state_actions: list[Prompt], sampling: Sampling | None = None) -> list[Answer]:
    """
    Q_L(s_t, a_t): sample a critique of each action (equation 3). With k = 1 the future and its evaluation are one
    generation; with k > 1 the successor model foresees k futures, d_t^(i) ~ M(. | s_t, a_t), and the evaluator E
    reads them all.

    Returns:
        `list[Answer]`: each parsed into a [`~prompts.Critique`], or `None` if it broke the format.
    """
    if roles.single_step or roles.num_futures == 1:
        parse = parse_correctness if roles.single_step else parse_critique
        return roles.ask("critique", [critic_prompt(roles, prompt) for prompt in state_actions], parse, sampling)
    prompts = [critic_prompt(roles, state_action) for state_action in state_actions for _ in range(roles.num_futures)]
    answers = roles.ask("successor", prompts, parse_future)
    questions = []
    for i, state_action in enumerate(state_actions):
        foreseen = [a.parsed.future for a in answers[i * roles.num_futures : (i + 1) * roles.num_futures] if a.parsed]
        question = render(roles.prompts.evaluation, futures=numbered(foreseen))
        questions.append(roles.follow_up(state_action, question))
    return roles.ask("critique", questions, parse_critique, sampling)


def predict_futures(roles: Roles, state_actions: list[Prompt], k: int) -> list[list[str]]:
    """
    Sample k futures of each action, d ~ M(. | s, a): from the successor model (p_pred), or, where the critic answers with
    future and verdict in one (k = 1 in training), what it foresees. Where a role is greedy they are sampled at temperature 1.

    Returns:
        `list[list[str]]`: those that could be read.

    Raises:
        ValueError: If `k` is less than 1, or a task is a single step, which has no future.
    """
    if k < 1:
        raise ValueError(f"`k` must be at least 1, got {k}.")
    if roles.single_step:
        raise ValueError("With `single_step=True` the critic judges correctness and foresees nothing.")
    role, parse = ("critique", parse_critique) if roles.num_futures == 1 else ("successor", parse_future)
    sampling = roles.samplings[role]
    if sampling.temperature == 0 and k > 1:
        sampling = replace(sampling, temperature=1.0)
    prompts = [critic_prompt(roles, state_action) for state_action in state_actions for _ in range(k)]
    answers = roles.ask(role, prompts, parse, sampling)
    groups = [answers[i : i + k] for i in range(0, len(answers), k)]
    return [[answer.parsed.future for answer in group if answer.parsed is not None] for group in groups]


# The language Bellman backup


def bellman_targets(roles: Roles, transitions: list[Transition], bootstrap: str = "implicit") -> list[Answer]:
    """
    Sample targets of the language Bellman backup, d_t ~ B_L M(. | s_t, a_t) (equation 1, p_tpred in section 5.1).

    Call it with the target weights. A terminated step is judged by its observation and the final score. Any other
    step, a truncated one too, bootstraps: a future is foreseen from the observed s_{t+1}, then joined with it. Where a
    task is a single step, the final score is all there is to know, and a step that was cut has no target.

    Args:
        roles ([`~method.roles.Roles`]):
            The speakers.
        transitions (`list[Transition]`):
            The observed steps.
        bootstrap (`str`, *optional*, defaults to `"implicit"`):
            Where the future from s_{t+1} comes from: `"implicit"` asks the successor model for action and future in one
            (section 5.1), `"explicit"` samples a_{t+1} from the policy and its future from the critic (equation 1),
            `"monte_carlo"` takes what really followed in the episode and bootstraps only where the episode was cut.

    Returns:
        `list[Answer]`: each parsed into a [`~prompts.Critique`], or `None` where there is no target.
    """
    prompts = _ended(roles, transitions)
    if not roles.single_step:
        going_on = {i: transition for i, transition in enumerate(transitions) if not transition.terminated}
        foresee = FUTURES[bootstrap]
        question = roles.prompts.backup if roles.num_futures == 1 else roles.prompts.backup_future
        for i, foreseen in zip(going_on, foresee(roles, list(going_on.values())), strict=True):
            if foreseen is not None:
                prompts[i] = roles.follow_up(foreseen, question)
    if roles.single_step:
        parse = parse_correctness
    else:
        parse = parse_critique if roles.num_futures == 1 else parse_future
    prompts = dict(sorted(prompts.items()))
    answers = roles.ask("backup", list(prompts.values()), parse)
    answers = dict(zip(prompts, correct_reasoning(roles, answers, roles.prompts.correct_backup), strict=True))
    return [answers.get(i, Answer(t.state_action, (), "", None)) for i, t in enumerate(transitions)]


def _ended(roles: Roles, transitions: list[Transition]) -> dict[int, Prompt]:
    """p_tpred for the transitions that ended their tasks, by index: the final score is known."""
    if roles.single_step:
        template = roles.prompts.backup_correctness
    else:
        single = roles.num_futures == 1
        template = roles.prompts.backup_terminated if single else roles.prompts.backup_future_terminated
    prompts = {}
    for i, transition in enumerate(transitions):
        if transition.terminated:
            score = f"{transition.episode.score:g}"
            question = render(template, next_observation=transition.turn.next_observation, score=score)
            prompts[i] = roles.follow_up(transition.state_action, question)
    return prompts


def _successor_prompts(roles: Roles, transitions: list[Transition]) -> list[Prompt]:
    """p_pred(s_{t+1})."""
    return [
        roles.follow_up(
            transition.state_action,
            render(roles.prompts.successor, next_observation=transition.turn.next_observation),
        )
        for transition in transitions
    ]


def _implicit_futures(roles: Roles, transitions: list[Transition]) -> list[Prompt | None]:
    """d_{t+1} ~ M(p_pred(s_{t+1})), as conversations that end with it."""
    futures = roles.ask("successor", _successor_prompts(roles, transitions), parse_text)
    return [roles.continued(future.prompt, future) if future.parsed else None for future in futures]


def _explicit_futures(roles: Roles, transitions: list[Transition]) -> list[Prompt | None]:
    """a_{t+1} ~ pi(. | s_{t+1}), d_{t+1} ~ M(. | s_{t+1}, a_{t+1}), as conversations that end with both."""
    successor, actor, critic = (roles.samplings[role] for role in ("successor", "policy", "critique"))
    states = [roles.observe(t.state_action, t.turn.action, t.turn.next_observation) for t in transitions]
    acting = replace(successor, max_tokens=actor.max_tokens, regex=actor.regex)
    actions = roles.ask("policy", states, roles.parse_action, acting)
    acted = {i: action for i, action in enumerate(actions) if action.parsed is not None}
    judging = replace(successor, max_tokens=critic.max_tokens)
    judged = critiques(roles, [roles.continued(action.prompt, action) for action in acted.values()], judging)
    conversations: list[Prompt | None] = [None] * len(transitions)
    successor_prompts = _successor_prompts(roles, transitions)
    for (i, action), critique in zip(acted.items(), judged, strict=True):
        if critique.parsed is not None:
            told = roles.chat.past_turn(f"{action.parsed} {critique.parsed.future}")
            conversations[i] = successor_prompts[i].extended(told)
    return conversations


def _observed_futures(roles: Roles, transitions: list[Transition]) -> list[Prompt | None]:
    """What really followed s_{t+1}, by the policy that acted then, as conversations that end with it."""
    cut = {i: transition for i, transition in enumerate(transitions) if not transition.episode.terminated}
    foreseen = dict(zip(cut, _implicit_futures(roles, list(cut.values())), strict=True))
    conversations = []
    for i, (transition, prompt) in enumerate(zip(transitions, _successor_prompts(roles, transitions), strict=True)):
        rest = transition.episode.turns[transition.index + 1 :]
        end = render(roles.prompts.observed_end, score=f"{transition.episode.score:g}")
        told = " ".join(filter(None, [*(f"{turn.action} {turn.next_observation}" for turn in rest), end]))
        conversations.append(foreseen[i] if i in foreseen else prompt.extended(roles.chat.past_turn(told)))
    return conversations


# Where the future after s_{t+1} comes from, by the name of `bootstrap`.
FUTURES = {"implicit": _implicit_futures, "explicit": _explicit_futures, "monte_carlo": _observed_futures}


# A critique as a number

_TAG = re.compile(r"(Optimality|Correctness)\W{0,3}:", re.IGNORECASE)
_OPPOSITE = {"yes": "No", "no": "Yes"}


def verdict_scores(roles: Roles, critiques: list[Answer]) -> list[float]:
    """
    log P(Yes) - log P(No) at the place of the verdict, given the future that was foreseen: Q(s, a) of LAC
    (https://huggingface.co/papers/2506.06376).

    Args:
        roles ([`~method.roles.Roles`]):
            The speakers; the scores are those of the weights that they have now.
        critiques (`list[Answer]`):
            Critiques with a verdict. Where processes score together, all of them call this, also with none.
    """
    prompts, completions = [], []
    for answer in critiques:
        token_ids = list(answer.token_ids)
        start, end, verdict = _find_verdict(roles, answer)
        word = re.search("yes|no", verdict, re.IGNORECASE).group()
        opposite = roles.chat.tokenizer(verdict.replace(word, _OPPOSITE[word.lower()]), add_special_tokens=False)
        pair = [token_ids[start:end], opposite["input_ids"]]
        prompts += [roles.opened(answer.prompt).ids + token_ids[:start]] * 2
        completions += pair if answer.parsed.optimal else pair[::-1]
    logps = roles.generator.score(prompts, completions)
    return [yes - no for yes, no in zip(logps[::2], logps[1::2], strict=True)]


class Judgement(NamedTuple):
    """What the critic says about an action: in words, as a verdict and as a score, see [`verdict_scores`]."""

    critique: str
    verdict: bool
    verdict_score: float


def judge_actions(roles: Roles, state_actions: list[Prompt]) -> list[Judgement | None]:
    """Critiques with their verdict scores; `None` where a critique broke its format."""
    return judge_critiques(roles, critiques(roles, state_actions))


def judge_critiques(roles: Roles, answers: list[Answer]) -> list[Judgement | None]:
    """The same from critiques that were sampled before."""
    readable = [i for i, answer in enumerate(answers) if answer.parsed is not None]
    judgements: list[Judgement | None] = [None] * len(answers)
    for i, score in zip(readable, verdict_scores(roles, [answers[i] for i in readable]), strict=True):
        judgements[i] = Judgement(answers[i].text, answers[i].parsed.optimal, score)
    return judgements


def _find_verdict(roles: Roles, answer: Answer) -> tuple[int, int, str]:
    """Between which tokens of a critique its verdict stands, and as what."""
    token_ids, decode = list(answer.token_ids), roles.chat.tokenizer.decode
    first = roles.chat.content_start(token_ids)
    start = next(i for i in range(first, len(token_ids)) if _TAG.search(decode(token_ids[first:i])))
    while not re.search(r"\w", decode([token_ids[start]])):
        start += 1
    end = next(
        i
        for i in range(start + 1, len(token_ids) + 1)
        if re.search("yes|no", decode(token_ids[start:i]), re.IGNORECASE)
    )
    return start, end, decode(token_ids[start:end])
