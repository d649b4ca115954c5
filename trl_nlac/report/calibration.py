# SPDX-License-Identifier: Apache-2.0

"""Calibration: how the critic's probabilities compare with the share of successes."""

import math
from collections import defaultdict
from dataclasses import dataclass

from ..evaluation.shares import calibration, wilson_interval


NUM_BINS = 10


@dataclass(frozen=True)
class Bin:
    """Verdicts with a similar probability of success."""

    count: int
    predicted: float  # mean probability
    observed: float  # share of successes
    low: float  # lower end of the 95 % interval of this share
    high: float


@dataclass(frozen=True)
class Reliability:
    """The critic in one evaluation."""

    dataset: str  # name of the dataset; empty if there is only one
    step: int  # optimizer steps before the evaluation
    count: int
    brier: float  # mean squared error of the probabilities
    # probability that a success has a higher score than a failure. `None` if only one of them occurred.
    auroc: float | None
    bins: list[Bin]


def first_and_last(verdicts: dict[tuple[str, int], list[tuple[float, bool]]]) -> list[list[Reliability]]:
    """
    Return the reliability in the first and the newest evaluation on each dataset, or in the only one. `verdicts` are
    the log-odds of a "Yes" and whether the episode succeeded, by dataset and step of the evaluation.
    """
    steps = defaultdict(list)
    for dataset, step in verdicts:
        steps[dataset].append(step)
    return [
        [reliability(dataset, step, verdicts[dataset, step]) for step in sorted({min(of_it), max(of_it)})]
        for dataset, of_it in steps.items()
    ]


def reliability(dataset: str, step: int, verdicts: list[tuple[float, bool]]) -> Reliability:
    """Compare verdict scores, the log-odds of a "Yes", with whether the episodes succeeded, of at least one."""
    scores, successes = ([float(value) for value in values] for values in zip(*verdicts, strict=True))
    values = calibration(scores, successes)
    groups: list[list[tuple[float, float]]] = [[] for _ in range(NUM_BINS)]
    for score, success in zip(scores, successes, strict=True):
        chance = probability(score)
        groups[min(NUM_BINS - 1, int(NUM_BINS * chance))].append((chance, success))
    bins = [_bin(*zip(*group, strict=True)) for group in groups if group]
    return Reliability(dataset, step, len(verdicts), values["brier"], values.get("auroc"), bins)


def probability(score: float) -> float:
    """Convert the log-odds of a "Yes" to its probability."""
    return 0.5 * (1 + math.tanh(score / 2))


def _bin(chances: tuple[float, ...], successes: tuple[float, ...]) -> Bin:
    low, high = wilson_interval(sum(successes), len(successes))
    return Bin(len(chances), sum(chances) / len(chances), sum(successes) / len(successes), low, high)
