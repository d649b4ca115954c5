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

"""Whether what the critic says comes true as often as it says so."""

import math
from collections import defaultdict
from dataclasses import dataclass

from ..evaluation.metrics import CriticCalibration, SuccessRate


NUM_BINS = 10


@dataclass(frozen=True)
class Bin:
    """
    Verdicts that gave success a similar chance.

    Args:
        count (`int`):
            Number of verdicts.
        foretold (`float`):
            Mean chance that they gave.
        happened (`float`):
            Share of successes.
        low (`float`):
            Lower end of the 95 % interval of this share.
        high (`float`):
            Upper end.
    """

    count: int
    foretold: float
    happened: float
    low: float
    high: float


@dataclass(frozen=True)
class Reliability:
    """
    The critic in one evaluation.

    Args:
        dataset (`str`):
            What was evaluated on; empty where there is only one dataset.
        step (`int`):
            Optimizer steps before it.
        count (`int`):
            Number of verdicts.
        brier (`float`):
            Mean squared error of the chances.
        auroc (`float`, *optional*):
            Chance that a success was given a higher one than a failure. `None` if only one of them occurred.
        bins (`list[Bin]`):
            Those with a verdict.
    """

    dataset: str
    step: int
    count: int
    brier: float
    auroc: float | None
    bins: list[Bin]


def first_and_last(verdicts: dict[tuple[str, int], list[tuple[float, bool]]]) -> list[list[Reliability]]:
    """
    The critic in the first and in the newest evaluation on each dataset; in one alone if there is no other.

    Args:
        verdicts (`dict[tuple[str, int], list[tuple[float, bool]]]`):
            By dataset and step of an evaluation: log-odds of a "Yes", and whether the episode succeeded.
    """
    steps = defaultdict(list)
    for dataset, step in verdicts:
        steps[dataset].append(step)
    return [
        [reliability(dataset, step, verdicts[dataset, step]) for step in sorted({min(of_it), max(of_it)})]
        for dataset, of_it in steps.items()
    ]


def reliability(dataset: str, step: int, verdicts: list[tuple[float, bool]]) -> Reliability:
    """
    Compare verdict scores with what happened.

    Args:
        dataset (`str`):
            What was evaluated on.
        step (`int`):
            Optimizer steps before the evaluation.
        verdicts (`list[tuple[float, bool]]`):
            Log-odds of a "Yes" and whether the episode succeeded; at least one.
    """
    scores, successes = ([float(value) for value in values] for values in zip(*verdicts, strict=True))
    values = CriticCalibration(keep_in_memory=True).compute(scores=scores, successes=successes)
    groups: list[list[tuple[float, float]]] = [[] for _ in range(NUM_BINS)]
    for score, success in zip(scores, successes, strict=True):
        chance = probability(score)
        groups[min(NUM_BINS - 1, int(NUM_BINS * chance))].append((chance, success))
    bins = [_bin(*zip(*group, strict=True)) for group in groups if group]
    return Reliability(dataset, step, len(verdicts), values["brier"], values.get("auroc"), bins)


def probability(score: float) -> float:
    """The chance of a "Yes" from its log-odds."""
    return 0.5 * (1 + math.tanh(score / 2))


def _bin(chances: tuple[float, ...], successes: tuple[float, ...]) -> Bin:
    rates = SuccessRate(keep_in_memory=True).compute(successes=list(successes))
    low, high = rates["success_rate_low"], rates["success_rate_high"]
    return Bin(len(chances), sum(chances) / len(chances), rates["success_rate"], low, high)
