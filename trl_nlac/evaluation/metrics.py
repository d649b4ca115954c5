# SPDX-License-Identifier: Apache-2.0

"""Metrics of played episodes, as modules of the `evaluate` library that need no network."""

import difflib
from collections import defaultdict
from collections.abc import Sequence
from math import comb
from statistics import stdev
from typing import NamedTuple

import datasets
import evaluate
from accelerate.utils import gather_object

from ..chat.tool_calls import before_words, parse_results, parse_tool_calls
from ..types import FAILURE_KINDS, Episode, all_conversations
from .shares import calibration, wilson_interval


_KIND_RATES = {f"environment/{kind}_failure_rate": kind for kind in FAILURE_KINDS}


class SuccessRate(evaluate.Metric):
    """
    Share of successful episodes with its Wilson score interval.

    `compute(successes=[...], confidence=0.95)` returns `success_rate`, `success_rate_low` and `success_rate_high`.
    """

    def _info(self):
        return evaluate.MetricInfo(
            description="Share of successful episodes with its Wilson score interval.",
            citation="",
            inputs_description="successes: 1 or 0 for each episode; confidence: confidence of the interval.",
            features=datasets.Features({"successes": datasets.Value("float64")}),
        )

    def _compute(self, successes, confidence: float = 0.95) -> dict[str, float]:
        low, high = wilson_interval(sum(successes), len(successes), confidence)
        return {"success_rate": sum(successes) / len(successes), "success_rate_low": low, "success_rate_high": high}


class PassHatK(evaluate.Metric):
    """
    Probability that k independent episodes of the same task all succeed, as defined by tau-bench: for a task with c
    successes in n episodes, `C(c, k) / C(n, k)`; then the mean over tasks with at least k episodes.

    `compute(tasks=[...], successes=[...])` takes the number of the task and 1 or 0 for each episode. It returns
    `pass^1`, `pass^2` and so on, up to the largest number of episodes of a task.
    """

    def _info(self):
        return evaluate.MetricInfo(
            description="Probability that k independent episodes of the same task all succeed.",
            citation="",
            inputs_description="tasks: number of the task of each episode; successes: 1 or 0 for each.",
            features=datasets.Features({"tasks": datasets.Value("int64"), "successes": datasets.Value("float64")}),
        )

    def _compute(self, tasks, successes) -> dict[str, float]:
        outcomes: dict[int, list[bool]] = defaultdict(list)
        for task, success in zip(tasks, successes, strict=True):
            outcomes[task].append(success == 1)
        rates = {}
        for k in range(1, max(map(len, outcomes.values())) + 1):
            chances = [comb(sum(won), k) / comb(len(won), k) for won in outcomes.values() if len(won) >= k]
            rates[f"pass^{k}"] = sum(chances) / len(chances)
        return rates


class CriticCalibration(evaluate.Metric):
    """
    Quality of verdict scores as predictions of success.

    `compute(scores=[...], successes=[...])` takes log-odds of a "Yes", and 1 or 0 for the outcomes. It returns
    `brier`, the mean squared error of the probabilities (0 is perfect, 0.25 is a coin flip), and, if both outcomes
    occur, `auroc`, the probability that a success has a higher score than a failure (0.5 is a coin flip).
    """

    def _info(self):
        return evaluate.MetricInfo(
            description="Brier score and area under the ROC curve of verdict scores.",
            citation="",
            inputs_description="scores: log-odds of success; successes: 1 or 0 for each.",
            features=datasets.Features({"scores": datasets.Value("float64"), "successes": datasets.Value("float64")}),
        )

    def _compute(self, scores, successes) -> dict[str, float]:
        return calibration(scores, successes)


def is_played(episode: Episode) -> bool:
    """Whether an episode has at least one turn and its environment did not fail."""
    return bool(episode.turns) and episode.failure is None


def episode_metrics(episodes: list[Episode], success_threshold: float) -> dict[str, float]:
    """Return means over the episodes of all processes, which all call it; failed ones count in failure rates alone."""
    outcomes = gather_object([Outcome.of(episode) for episode in episodes])
    if not outcomes:
        return {}
    metrics = {}
    played = [outcome for outcome in outcomes if outcome.is_played]
    if played:
        metrics["episode/success_rate"] = sum(one.score >= success_threshold for one in played) / len(played)
        metrics["episode/return"] = sum(one.score for one in played) / len(played)
        metrics["episode/length"] = sum(one.num_turns for one in played) / len(played)
        if any(one.num_conversations > 1 for one in played):
            metrics["episode/num_segments"] = sum(one.num_conversations for one in played) / len(played)
    kinds = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    metrics["environment/failure_rate"] = len(kinds) / len(outcomes)
    metrics.update({name: kinds.count(kind) / len(outcomes) for name, kind in _KIND_RATES.items()})
    return metrics


class Outcome(NamedTuple):
    """What the metrics of an episode need, without its tokens."""

    score: float
    num_turns: int
    num_conversations: int  # 1, and one for each of its segments
    is_played: bool  # whether it has a turn and its environment did not fail
    failure: str | None  # its kind

    @classmethod
    def of(cls, episode: Episode) -> "Outcome":
        failure = None if episode.failure is None else episode.failure.partition(":")[0]
        return cls(episode.score, episode.num_turns, 1 + len(episode.segments), is_played(episode), failure)


def eval_name(metric: str) -> str:
    """Return the name that a metric of `metric_for_best_model` has in the results of an evaluation."""
    return f"eval_{metric.removeprefix('eval_')}"


def why_not_comparable(metrics: dict[str, float], metric: str, max_failure_rate: float) -> str | None:
    """Explain, for a warning, why results by `metric` on all datasets of an evaluation say nothing, if so."""
    failure_rate = "environment/failure_rate"
    evaluated = [name.removesuffix(failure_rate) for name in metrics if name.endswith(failure_rate)]
    named = [dataset for dataset in evaluated if eval_name(metric).startswith(dataset)]
    if named:
        dataset = max(named, key=len)  # the name of one can begin with that of another
        rate = metrics[f"{dataset}{failure_rate}"]
        if rate > max_failure_rate:
            return f"the environment failed in {rate:.0%} of its episodes"
        if f"{dataset}episode/success_rate" not in metrics:
            return "not one of its episodes was played"
    if eval_name(metric) not in metrics:
        own = sorted(name.removeprefix("eval_") for name in metrics if "/" in name)
        similar = difflib.get_close_matches(metric.removeprefix("eval_"), own) or own
        return f"it has no `{metric}`, which not every evaluation has; it has {', '.join(f'`{n}`' for n in similar)}"
    return None


def reward_metrics(episodes: list[Episode]) -> dict[str, float]:
    """
    Return what [`~trl.GRPOTrainer`] logs about rewards and completions, under its names, of the played episodes of all
    processes: mean and standard deviation of the episodes' rewards, in all and of each reward function, without those
    that it gave no reward; and tokens of the policy in an episode, as they stand in the conversation. Every process
    has to call it.
    """
    own = [
        (
            episode.score,
            sum(turn.action_length for one in (episode, *episode.segments) for turn in one.turns),
            {
                name: value
                for name, value in episode.extra.items()
                if name.startswith("rewards/") and isinstance(value, int | float) and value == value
            },
        )
        for episode in episodes
        if is_played(episode)
    ]
    gathered = gather_object(own)
    if not gathered:
        return {}
    scores, lengths, of_functions = zip(*gathered, strict=True)
    metrics = _mean_and_std(scores, "reward", "reward_std")
    for name in dict.fromkeys(name for rewards in of_functions for name in rewards):
        rewards = [rewards[name] for rewards in of_functions if name in rewards]
        metrics.update(_mean_and_std(rewards, f"{name}/mean", f"{name}/std"))
    metrics["completions/mean_length"] = sum(lengths) / len(lengths)
    metrics["completions/min_length"] = float(min(lengths))
    metrics["completions/max_length"] = float(max(lengths))
    return metrics


def tool_metrics(episodes: list[Episode]) -> dict[str, float]:
    """
    Return what [`~trl.GRPOTrainer`] logs about tools, under its names, of the played episodes of all processes that
    have any: calls per episode, and the share of them that the environment answered with an error in TRL's form. Every
    process has to call it.
    """
    played = [all_conversations([episode]) for episode in episodes if is_played(episode)]
    own = [_count_calls(conversations) for conversations in played if any(one.tools for one in conversations)]
    gathered = gather_object(own)
    if not gathered:
        return {}
    calls, errors = map(sum, zip(*gathered, strict=True))
    return {"tools/call_frequency": calls / len(gathered), "tools/failure_frequency": errors / max(1, calls)}


def _count_calls(conversations: list[Episode]) -> tuple[int, int]:
    """Count the calls of tools, and those that were answered with an error."""
    results = [
        result
        for one in conversations
        for turn in one.turns
        for result in parse_results(
            before_words(turn.next_observation, turn.words), len(parse_tool_calls(turn.action))
        )
    ]
    return len(results), sum(result.startswith("{'error': ") for result in results)


def _mean_and_std(values: Sequence[float], mean: str, std: str) -> dict[str, float]:
    """Return the mean, and the standard deviation of more than one value."""
    metrics = {mean: sum(values) / len(values)}
    if len(values) > 1:
        metrics[std] = stdev(values)
    return metrics


def without_zero_kinds(metrics: dict[str, float]) -> dict[str, float]:
    """Leave out the rates of those kinds of failures that did not occur."""
    return {name: value for name, value in metrics.items() if value or name not in _KIND_RATES}


def mean_over_processes(metrics: dict[str, float]) -> dict[str, float]:
    """Return the mean of each metric over the processes that have it, by name."""
    values: dict[str, list[float]] = defaultdict(list)
    for of_process in gather_object([metrics]):
        for name, value in of_process.items():
            values[name].append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
