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

"""Metrics of played episodes, as modules of the `evaluate` library. They load nothing from the network."""

from math import sqrt
from statistics import NormalDist

import datasets
import evaluate

from .types import Episode


class SuccessRate(evaluate.Metric):
    """
    Share of successful episodes with its Wilson score interval.

    `compute(successes=[...], confidence=0.95)` returns `success_rate`, `success_rate_low` and `success_rate_high`.
    """

    def _info(self):
        return evaluate.MetricInfo(
            description="Share of successful episodes with its Wilson score interval.",
            citation="",
            inputs_description="successes: 1 or 0 for each episode; confidence: of the interval.",
            features=datasets.Features({"successes": datasets.Value("float64")}),
        )

    def _compute(self, successes, confidence: float = 0.95) -> dict[str, float]:
        n, rate = len(successes), sum(successes) / len(successes)
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        center = (rate + z * z / (2 * n)) / (1 + z * z / n)
        margin = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
        return {
            "success_rate": rate,
            "success_rate_low": max(0.0, center - margin),
            "success_rate_high": min(1.0, center + margin),
        }


def episode_metrics(episodes: list[Episode], success_threshold: float) -> dict[str, float]:
    """
    Means over played episodes; those whose environment failed only count for the failure rate.

    Args:
        episodes (`list[Episode]`):
            At least one.
        success_threshold (`float`):
            Score from which an episode is a success.
    """
    metrics = {"environment/failure_rate": sum(e.failure is not None for e in episodes) / len(episodes)}
    played = [episode for episode in episodes if episode.turns and episode.failure is None]
    if played:
        metrics["episode/return"] = sum(episode.score for episode in played) / len(played)
        metrics["episode/length"] = sum(len(episode.turns) for episode in played) / len(played)
        metrics["episode/success_rate"] = sum(e.score >= success_threshold for e in played) / len(played)
    return metrics
