# SPDX-License-Identifier: Apache-2.0

"""Shares of successes, and what predicts them: numbers alone, without the libraries that the metrics need."""

from collections.abc import Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np


def wilson_interval(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a rate of `successes` in `n`, at least 1."""
    rate = successes / n
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    center = (rate + z * z / (2 * n)) / (1 + z * z / n)
    margin = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    return max(0.0, center - margin), min(1.0, center + margin)


def paired_interval(gained: float, lost: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """
    Return Bonett and Price's interval of the difference of two rates of successes in `n` pairs, at least 1, of which
    `gained` and `lost` succeed on one side alone. It leaves 0 out where the exact sign test does, or nearly.
    """
    gains, losses = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    margin = z * sqrt((gains + losses - (gains - losses) ** 2) / (n + 2))
    return max(-1.0, gains - losses - margin), min(1.0, gains - losses + margin)


def calibration(scores: Sequence[float], successes: Sequence[float]) -> dict[str, float]:
    """Compare log-odds of a "Yes" with outcomes, 1 or 0, see [`~evaluation.metrics.CriticCalibration`]."""
    scores, successes = np.asarray(scores), np.asarray(successes)
    probabilities = np.exp(-np.logaddexp(0, -scores))
    metrics = {"brier": float(np.mean((probabilities - successes) ** 2))}
    won, lost = scores[successes == 1], scores[successes == 0]
    if len(won) and len(lost):
        lost.sort()
        lower, not_higher = (np.searchsorted(lost, won, side) for side in ("left", "right"))
        metrics["auroc"] = float(np.mean(lower + not_higher) / (2 * len(lost)))  # a tie counts half
    return metrics
