# SPDX-License-Identifier: Apache-2.0

"""A critic on logs: how well it foresees outcomes, and where it says that things went wrong."""

import random
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from ..chat.actions import ActionFormat
from ..episodes.logs import episodes_from_logs, logs_dataset
from ..evaluation.metrics import CriticCalibration
from ..method.critic import judge_actions
from ..prompts import NLACPrompts
from ..types import Episode, Judgement, Transition
from .agent import NLACAgent
from .better_actions import refine_in_hindsight


@dataclass(frozen=True)
class Finding:
    """A step of a conversation that failed, which the critic would not have taken."""

    conversation: int  # number of the conversation, from 0
    step: int  # number of the step, from 0
    num_steps: int
    reward: float
    score: float  # verdict score of the step, log P(Yes) - log P(No)
    observation: str  # what the agent saw last
    action: str  # what it did
    critique: str  # the critic's words, without knowing what followed
    hindsight: str  # the judgement with what followed and the outcome; empty where it could not be read
    better: str  # the action that the model would take after that judgement; empty where it could not be read
    others: tuple[int, ...] = ()  # conversations with an equal step: observation, action, what followed, critique


def readable_rows(
    rows: list[dict[str, Any]], actions: ActionFormat, prompts: NLACPrompts, max_prompt_length: int | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Keep the rows that the model can read as episodes; the others by the reason why not."""
    try:
        episodes_from_logs(logs_dataset(rows), actions, prompts, max_prompt_length=max_prompt_length)
        return rows, []
    except ValueError:
        pass  # one or more of them: which ones?
    kept, problems = [], []
    for row in rows:
        try:
            episodes_from_logs(logs_dataset([row]), actions, prompts, max_prompt_length=max_prompt_length)
            kept.append(row)
        except ValueError as error:
            problems.append(str(error).partition("row 0: ")[2] or str(error))
    return kept, problems


class LogReview:
    """Conversations for measuring the critic (`held_out`) and for findings: the same steps are judged each time."""

    def __init__(self, rows: list[dict[str, Any]], held_out: list[dict[str, Any]], num_critiques: int, seed: int):
        self.logs, self.held_out = logs_dataset(rows), logs_dataset(held_out)
        self.num_critiques = num_critiques
        self.seed = seed

    def judge_held_out(self, agent: NLACAgent) -> list[tuple[int, int, Judgement | None, Episode]]:
        """Judge steps of held-out conversations: number of the conversation and of the step, judgement, episode."""
        episodes = episodes_of(agent, self.held_out)
        steps = [(i, t) for i, episode in enumerate(episodes) for t in range(len(episode.turns))]
        steps = sorted(random.Random(self.seed).sample(steps, min(self.num_critiques, len(steps))))
        judgements = judge_steps(agent, [Transition(episodes[i], t) for i, t in steps])
        return [(i, t, judged, episodes[i]) for (i, t), judged in zip(steps, judgements, strict=True)]

    def find(self, agent: NLACAgent, number: int) -> tuple[list[Finding], int]:
        """
        Find the steps at which conversations went wrong: those of failures to which the critic says no, the surest
        first, at most one for each conversation. Equal ones are one finding, and there are at most `number`. Return
        them, and the number of steps that were judged. Raise a `ValueError` if the agent's critiques weigh several
        futures (`num_futures`).
        """
        episodes = episodes_of(agent, self.logs)
        failures = [i for i, episode in enumerate(episodes) if episode.score < agent.options.success_threshold]
        random.Random(self.seed).shuffle(failures)
        steps: list[tuple[int, int]] = []
        for i in failures:
            if steps and len(steps) + len(episodes[i].turns) > self.num_critiques:
                break
            steps += [(i, t) for t in range(len(episodes[i].turns))]
        judgements = judge_steps(agent, [Transition(episodes[i], t) for i, t in steps])
        worst: dict[int, tuple[float, int, str]] = {}
        for (i, t), judgement in zip(steps, judgements, strict=True):
            if judgement is not None and judgement.verdict_score < 0:
                worst[i] = min(worst.get(i, (0.0, 0, "")), (judgement.verdict_score, t, judgement.critique))
        equal: dict[tuple[str, ...], list[int]] = {}
        for i, (_, t, critique) in sorted(worst.items(), key=lambda item: item[1]):
            step = Transition(episodes[i], t)
            words = step.observation, step.turn.action, step.turn.next_observation, critique
            equal.setdefault(words, []).append(i)
        ranked = list(equal.values())[:number]
        transitions = [Transition(episodes[i], worst[i][1]) for i, *_ in ranked]
        findings = []
        with agent.generating():
            targets, better = refine_in_hindsight(agent.roles, transitions)
        for (i, *others), transition, target, refined in zip(ranked, transitions, targets, better, strict=True):
            score, t, critique = worst[i]
            findings.append(
                Finding(
                    conversation=i,
                    step=t,
                    num_steps=len(episodes[i].turns),
                    reward=episodes[i].score,
                    score=score,
                    observation=transition.observation,
                    action=transition.turn.action,
                    critique=critique,
                    hindsight="" if target.parsed is None else target.text,
                    better="" if refined is None else refined.refined_action.parsed,
                    others=tuple(others),
                )
            )
        return findings, len(steps)


def critic_metrics(
    judged: list[tuple[int, int, Judgement | None, Episode]], success_threshold: float
) -> dict[str, float]:
    """
    Measure how well verdicts agree with outcomes: `steps`, the number judged, `readable`, the share of critiques in
    their format, `brier` and `auroc` of the verdict scores, `agreement`, the share of verdicts that are as the
    outcome, and `agreement_of_last_steps`, the same of the last steps of conversations.
    """
    known = [
        (judgement, float(episode.score >= success_threshold), t == len(episode.turns) - 1)
        for _, t, judgement, episode in judged
        if judgement is not None
    ]
    metrics = {"steps": len(judged), "readable": len(known) / len(judged) if judged else 0.0}
    if known:
        scores, successes = [judgement.verdict_score for judgement, _, _ in known], [won for _, won, _ in known]
        metrics |= CriticCalibration(keep_in_memory=True).compute(scores=scores, successes=successes)
        agrees = [(judgement.verdict_score > 0) == bool(won) for judgement, won, _ in known]
        metrics["agreement"] = sum(agrees) / len(agrees)
        of_last = [right for right, (_, _, is_last) in zip(agrees, known, strict=True) if is_last]
        if of_last:
            metrics["agreement_of_last_steps"] = sum(of_last) / len(of_last)
    return metrics


def episodes_of(agent: NLACAgent, logs: Dataset) -> list[Episode]:
    """Read logged conversations as episodes of an agent, see [`~episodes.logs.episodes_from_logs`]."""
    roles = agent.roles
    return episodes_from_logs(logs, roles.actions, roles.prompts, max_prompt_length=agent.options.max_prompt_length)


def judge_steps(agent: NLACAgent, transitions: list[Transition]) -> list[Judgement | None]:
    """Let the critic judge logged actions."""
    with agent.generating():
        return judge_actions(agent.roles, [transition.state_action for transition in transitions])
