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

"""Which curves the report draws, from what was logged."""

import math
from dataclasses import dataclass, replace
from itertools import cycle

from .log import TrainingLog


MAX_POINTS = 240  # of a curve of training; more cannot be told apart on a screen
COLORS = ("blue", "orange", "green", "pink", "amber", "sky", "grey")
# A role keeps its colour in every chart.
_ROLES = {
    "critic": "blue",
    "policy": "orange",
    "refine": "green",
    "successor": "pink",
    "correction": "amber",
    "critique": "sky",
    "rehearsal": "grey",
}
_VERDICTS = {
    "critic/optimal_rate": ("targets that say “Yes”", "blue"),
    "refine/optimal_rate": ("critiques that say “Yes”", "sky"),
    "refine/changed_rate": ("actions that refinement changed", "green"),
}
_ORACLE = {
    "oracle/future_accuracy": "blue",
    "oracle/verdict_yes_rate": "orange",
    "oracle/verdict_no_rate": "green",
    "oracle/refined_better_rate": "pink",
    "oracle/readable_rate": "grey",
}
_PHASES = {  # what is timed once in an iteration
    "rollout": "orange",
    "target": "blue",
    "refine": "green",
    "audit": "pink",
    "sync": "grey",
}

Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Series:
    """
    One curve.

    Args:
        name (`str`):
            Its label.
        color (`str`):
            One of `COLORS`.
        x (`list[float]`):
            Environment steps, ascending.
        y (`list[float]`):
            Values.
        low (`list[float]`, *optional*):
            Lower ends of a band.
        high (`list[float]`, *optional*):
            Upper ends of a band.
        style (`str`, *optional*, defaults to `"line"`):
            `"line"`, `"faint"` for a line in the background, or `"area"` for a band without a line.
    """

    name: str
    color: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    style: str = "line"


@dataclass(frozen=True)
class Chart:
    """
    Curves over environment steps.

    Args:
        title (`str`):
            What is shown.
        series (`list[Series]`):
            Curves.
        note (`str`, *optional*, defaults to `""`):
            A sentence below the title.
        is_rate (`bool`, *optional*, defaults to `False`):
            Whether all values are from 0 to 1.
        is_wide (`bool`, *optional*, defaults to `False`):
            Whether it takes the room of two.
    """

    title: str
    series: list[Series]
    note: str = ""
    is_rate: bool = False
    is_wide: bool = False


def learning_charts(log: TrainingLog) -> list[Chart]:
    """How well the policy acts."""
    evaluations = [row for rows in log.evaluations.values() for row in rows]
    powers = _names(evaluations, "episode/pass^")
    chances = [
        (rows, name, f"{name.removeprefix('episode/')} {dataset}".strip())
        for dataset, rows in log.evaluations.items()
        for name in powers
    ]
    bands = "Bands are 95 % intervals." if _names(evaluations, "episode/success_rate_low") else ""
    return _with_data(
        Chart("Success rate", _both(log, "episode/success_rate"), bands, is_rate=True, is_wide=True),
        Chart("Return", _both(log, "episode/return")),
        Chart("Turns per episode", _both(log, "episode/length")),
        Chart(
            "pass^k",
            _colored(chances) if len(powers) > 1 else [],
            "Chance that k episodes of the same task all succeed.",
            is_rate=True,
        ),
    )


def training_charts(log: TrainingLog) -> list[Chart]:
    """What the gradient steps do."""
    losses = [_curve(log.training, f"{name}/loss", name, _ROLES[name]) for name in ("critic", "policy", "rehearsal")]
    priorities = [_curve(log.training, "replay/priority_mean", "mean priority", "blue")]
    sizes = [_curve(log.training, "replay/size", "transitions", "blue")]
    distances = [_curve(log.training, "target/distance", "distance", "blue")]
    return _with_data(
        Chart("Losses", losses, "Per token, in nats."),
        Chart("Replay priorities", priorities, "Mean over the buffer: the critic loss that each transition last had."),
        Chart("Replay buffer", sizes, "Number of transitions."),
        Chart("Target weights", distances, "Distance to the policy's weights, relative to their norm."),
    )


def role_charts(log: TrainingLog) -> list[Chart]:
    """What the roles say."""
    formats = [name for name in _names(log.training) if name.endswith("/format_rate")]
    formats = [_curve(log.training, name, role := name.split("/")[0], _ROLES.get(role, "grey")) for name in formats]
    healths = _colored([(log.training, name, _words(name)) for name in _names(log.training, "health/")])
    verdicts = [_curve(log.training, name, *label) for name, label in _VERDICTS.items()]
    return _with_data(
        Chart("Answers in their format", formats, is_rate=True),
        Chart("Health", healths, is_rate=True),
        Chart("Verdicts", verdicts, is_rate=True),
    )


def critic_charts(log: TrainingLog) -> list[Chart]:
    """How well the critic foretells success, and how often it is right where the truth is known."""
    return _with_data(
        Chart("Brier score", _evaluation_curves(log, "critic/brier"), "0 is perfect, 0.25 is a coin."),
        Chart("AUROC", _evaluation_curves(log, "critic/auroc"), "1 is perfect, 0.5 is a coin.", is_rate=True),
        *(
            Chart(f"Against the truth, {dataset or 'evaluation'}", _truths(rows), is_rate=True)
            for dataset, rows in log.evaluations.items()
        ),
        Chart("Against the truth, training", _truths(log.training), is_rate=True),
    )


def time_charts(log: TrainingLog) -> list[Chart]:
    """Where the time goes, and how often environments fail."""
    failures = _colored(
        [(log.training, name, _words(name)) for name in _names(log.training, "environment/", "failure_rate")]
    )
    return _with_data(
        Chart(
            "Time before gradient steps",
            _shares(log.training),
            "Shares of acting, Bellman targets, refinement, the audit trail and the syncing of weights.",
            is_rate=True,
        ),
        Chart("Gradient steps", [_curve(log.training, "time/train", "seconds", "blue")], "Seconds per micro-batch."),
        Chart("Environment failures", [series for series in failures if any(series.y)], "Share of episodes."),
    )


def _with_data(*charts: Chart) -> list[Chart]:
    charts = [replace(chart, series=[series for series in chart.series if series.x]) for chart in charts]
    return [chart for chart in charts if chart.series]


def _names(rows: Rows, start: str = "", end: str = "") -> list[str]:
    """Metrics that any of the rows has, in the order of their first appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name.startswith(start) and name.endswith(end)]


def _words(name: str) -> str:
    """Label of a metric."""
    return name.split("/")[-1].replace("_", " ")


def _curve(rows: Rows, metric: str, label: str, color: str) -> Series:
    rows = [row for row in rows if metric in row and "environment/steps" in row]
    x, y = ([row[name] for row in rows] for name in ("environment/steps", metric))
    return Series(label, color, _thinned(x), _thinned(y))


def _colored(curves: list[tuple[Rows, str, str]]) -> list[Series]:
    """Curves of rows, metric and label, in one colour after the other."""
    return [_curve(*curve, color) for curve, color in zip(curves, cycle(COLORS), strict=False)]


def _truths(rows: Rows) -> list[Series]:
    return [_curve(rows, name, _words(name), color) for name, color in _ORACLE.items()]


def _both(log: TrainingLog, metric: str) -> list[Series]:
    """A metric in training, faintly, and in evaluations."""
    training = _curve(log.training, metric, "training", "grey")
    return [replace(training, style="faint"), *_evaluation_curves(log, metric)]


def _evaluation_curves(log: TrainingLog, metric: str) -> list[Series]:
    """A curve for each dataset, with its interval if there is one."""
    curves = _colored([(rows, metric, dataset or "evaluation") for dataset, rows in log.evaluations.items()])
    lows, highs = (
        _colored([(rows, f"{metric}_{end}", "") for rows in log.evaluations.values()]) for end in ("low", "high")
    )
    return [
        replace(curve, low=low.y, high=high.y) if low.x == high.x == curve.x else curve
        for curve, low, high in zip(curves, lows, highs, strict=True)
    ]


def _shares(rows: Rows) -> list[Series]:
    """The share of every phase that is timed once in an iteration, one on top of the other."""
    metrics = [f"time/{phase}" for phase in _PHASES]
    rows = [row for row in rows if "environment/steps" in row and sum(row.get(metric, 0.0) for metric in metrics) > 0]
    seconds = {metric: _thinned([row.get(metric, 0.0) for row in rows]) for metric in metrics}
    x = _thinned([row["environment/steps"] for row in rows])
    totals = [sum(values) for values in zip(*seconds.values(), strict=True)]
    curves, low = [], [0.0] * len(totals)
    for (phase, color), values in zip(_PHASES.items(), seconds.values(), strict=True):
        shares = [value / total for value, total in zip(values, totals, strict=True)]
        high = [floor + share for floor, share in zip(low, shares, strict=True)]
        if any(shares):
            curves.append(Series(phase, color, x, shares, low, high, style="area"))
        low = high
    return curves


def _thinned(values: list[float]) -> list[float]:
    """Means of as many neighbours as it takes to keep to `MAX_POINTS`, with as many digits as can be seen."""
    size = math.ceil(len(values) / MAX_POINTS)
    groups = (values[i : i + size] for i in range(0, len(values), max(1, size)))
    return [float(f"{sum(group) / len(group):.6g}") for group in groups]
