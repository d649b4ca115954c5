# SPDX-License-Identifier: Apache-2.0

"""The curves of the report, from the logged metrics."""

import math
from dataclasses import dataclass, replace
from itertools import cycle

from ..records.log import TrainingLog
from .run_summary import ROLE_NAMES


MAX_POINTS = 240  # of a training curve; more cannot be distinguished on a screen
COLORS = ("blue", "orange", "green", "pink", "amber", "sky", "grey")
# A role keeps its colour in every chart.
_ROLES = {
    "critic": "blue",
    "backup": "sky",
    "policy": "orange",
    "refine": "green",
    "successor": "pink",
    "correction": "amber",
}
_VERDICTS = {
    "backup/optimal_rate": ("targets that say “Yes”", "sky"),
    "critic/optimal_rate": ("critiques that say “Yes”", "blue"),
    "refine/changed_rate": ("actions changed by refinement", "green"),
}
_ORACLE = {
    "oracle/future_accuracy": ("future right", "blue"),
    "oracle/verdict_yes_rate": ("“Yes” where the action is best", "orange"),
    "oracle/verdict_no_rate": ("“No” where it is not", "green"),
    "oracle/refined_better_rate": ("refined action better", "pink"),
    "oracle/readable_rate": ("critique readable", "grey"),
}
_PHASES = {  # timed once per iteration
    "rollout": "orange",
    "target": "sky",
    "refine": "green",
    "audit": "pink",
    "sync": "grey",
}

Rows = list[dict[str, float]]


@dataclass(frozen=True)
class Series:
    """One curve."""

    name: str
    color: str  # one of `COLORS`
    x: list[float]  # environment or optimizer steps, see [`axis_of`], ascending
    y: list[float]
    low: list[float] | None = None  # lower ends of a band
    high: list[float] | None = None  # upper ends of a band
    style: str = "line"  # `"line"`, `"faint"` for a line in the background, or `"area"` for a band without a line


@dataclass(frozen=True)
class Chart:
    """Curves over environment or optimizer steps, see [`axis_of`]."""

    title: str
    series: list[Series]
    note: str = ""  # a sentence below the title
    is_rate: bool = False
    is_wide: bool = False  # whether the chart is twice as wide as others


def axis_of(*logs: TrainingLog) -> str:
    """Name the x axis: environment steps, or optimizer steps where a run trains without an environment, on logs."""
    trained = [log for log in logs if log.training]
    return "environment steps" if all(map(_counts_steps, (log.training for log in trained))) else "optimizer steps"


def learning_charts(log: TrainingLog) -> list[Chart]:
    """Return the charts of the policy's performance."""
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
            "Probability that k episodes of the same task all succeed.",
            is_rate=True,
        ),
    )


def training_charts(log: TrainingLog) -> list[Chart]:
    """Return the charts of the gradient steps."""
    losses = [_curve(log.training, f"{name}/loss", name, _ROLES[name]) for name in ("critic", "policy")]
    priorities = [_curve(log.training, "replay/priority_mean", "mean priority", "blue")]
    sizes = [_curve(log.training, "replay/size", "transitions", "blue")]
    distances = [_curve(log.training, "target/distance", "distance", "blue")]
    return _with_data(
        Chart("Losses", losses, "Per token, in nats."),
        Chart("Replay priorities", priorities, "Mean over the buffer of each transition's latest critic loss."),
        Chart("Replay buffer", sizes, "Number of transitions."),
        Chart("Target weights", distances, "Distance to the policy's weights, relative to their norm."),
    )


def role_charts(log: TrainingLog) -> list[Chart]:
    """Return the charts of the roles' outputs."""
    formats = [name for name in _names(log.training) if name.endswith("/format_rate")]
    formats = [_curve(log.training, name, role := name.split("/")[0], _ROLES.get(role, "grey")) for name in formats]
    healths = [
        _curve(log.training, name, words := _words(name), _ROLES.get(words.partition(" ")[0], "grey"))
        for name in _names(log.training, "health/")
    ]
    verdicts = [_curve(log.training, name, *label) for name, label in _VERDICTS.items()]
    return _with_data(
        Chart("Answers in the right format", formats, is_rate=True),
        Chart("Health", healths, is_rate=True),
        Chart("Verdicts", verdicts, is_rate=True),
    )


def critic_charts(log: TrainingLog) -> list[Chart]:
    """Return the charts of the critic's predictions, and of its accuracy if the ground truth is known."""
    return _with_data(
        Chart("Brier score", _evaluation_curves(log, "critic/brier"), "0 is perfect, 0.25 is a coin flip."),
        Chart("AUROC", _evaluation_curves(log, "critic/auroc"), "1 is perfect, 0.5 is a coin flip.", is_rate=True),
        *(
            Chart(f"Compared with the oracle, {dataset or 'evaluation'}", _truths(rows), is_rate=True)
            for dataset, rows in log.evaluations.items()
        ),
        Chart("Compared with the oracle, training", _truths(log.training), is_rate=True),
    )


def time_charts(log: TrainingLog) -> list[Chart]:
    """Return the charts of run time, tokens and environment failures."""
    names = _names(log.training, "environment/", "failure_rate")
    # Logs have the kinds that occurred.
    rows = [{**dict.fromkeys(names, 0.0), **row} if "environment/failure_rate" in row else row for row in log.training]
    failures = _colored([(rows, name, _words(name)) for name in names])
    roles = {name: name.split("/")[-1] for name in _names(log.training, "tokens/generated/")}
    generated = [
        _curve(log.training, name, ROLE_NAMES.get(of, of), _ROLES.get(of, "grey")) for name, of in roles.items()
    ]
    return _with_data(
        Chart(
            "Time before gradient steps",
            _shares(log.training),
            "Shares of the rollout, Bellman targets, refinement, the audit trail and weight syncs.",
            is_rate=True,
        ),
        Chart("Generated tokens", generated, "In training so far, by role."),
        Chart("Gradient steps", [_curve(log.training, "time/train", "seconds", "blue")], "Seconds per micro-batch."),
        Chart("Environment failures", [series for series in failures if any(series.y)], "Share of episodes."),
    )


def comparison_charts(logs: dict[str, TrainingLog]) -> list[Chart]:
    """Return charts with a curve for each run, given the logs by name of the run."""
    if axis_of(*logs.values()) == "optimizer steps":
        logs = {name: _by_optimizer_steps(log) for name, log in logs.items()}

    def of_training(metric: str) -> list[Series]:
        return _colored([(log.training, metric, name) for name, log in logs.items()])

    datasets = list(dict.fromkeys(dataset for log in logs.values() for dataset in log.evaluations))
    charts = []
    for dataset in datasets:
        of_dataset = f", {dataset}" if dataset else ""
        rows = {name: log.evaluations.get(dataset, []) for name, log in logs.items()}
        success, brier = (_with_intervals(rows, metric) for metric in ("episode/success_rate", "critic/brier"))
        charts.append(Chart(f"Success in evaluation{of_dataset}", success, is_rate=True, is_wide=True))
        charts.append(Chart(f"Brier score{of_dataset}", brier, "0 is perfect, 0.25 is a coin flip."))
    return _with_data(
        *charts,
        Chart("Success in training", of_training("episode/success_rate"), is_rate=True, is_wide=not datasets),
        Chart("Return in training", of_training("episode/return")),
        Chart("Turns per episode", of_training("episode/length")),
        Chart("Critic loss", of_training("critic/loss")),
        Chart("Policy loss", of_training("policy/loss")),
        Chart("Actions changed by refinement", of_training("refine/changed_rate"), is_rate=True),
        Chart("Generated tokens", of_training("tokens/generated"), "In training so far."),
    )


def _with_data(*charts: Chart) -> list[Chart]:
    """Leave out curves without points, or with one that became infinite by averaging, and charts without curves."""
    drawn = []
    for chart in charts:
        series = [
            one
            for one in chart.series
            if one.x and all(map(math.isfinite, [*one.x, *one.y, *(one.low or []), *(one.high or [])]))
        ]
        drawn += [replace(chart, series=series)] if series else []
    return drawn


def _names(rows: Rows, start: str = "", end: str = "") -> list[str]:
    """Return the metrics in any of the rows, in the order of their first appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name.startswith(start) and name.endswith(end)]


def _words(name: str) -> str:
    """Return the label of a metric."""
    return name.split("/")[-1].replace("_", " ")


def _curve(rows: Rows, metric: str, label: str, color: str) -> Series:
    step = _step_of(rows)
    rows = [row for row in rows if metric in row and "environment/steps" in row]
    x, y = ([row[name] for row in rows] for name in (step, metric))
    return Series(label, color, _thinned(x), _thinned(y))


def _counts_steps(rows: Rows) -> bool:
    """Whether any row counts environment steps; before the first one they are 0, as are optimizer steps."""
    return any(row.get("environment/steps") for row in rows)


def _step_of(rows: Rows) -> str:
    """Return the metric on the x axis."""
    return "environment/steps" if _counts_steps(rows) else "step"


def _by_optimizer_steps(log: TrainingLog) -> TrainingLog:
    """Put optimizer steps in the place of environment steps."""

    def placed(rows: Rows) -> Rows:
        return [{**row, "environment/steps": row["step"]} for row in rows if "environment/steps" in row]

    evaluations = {dataset: placed(rows) for dataset, rows in log.evaluations.items()}
    return replace(log, training=placed(log.training), evaluations=evaluations)


def _colored(curves: list[tuple[Rows, str, str]]) -> list[Series]:
    """Make curves of rows, metric and label, with the colours in turn."""
    return [_curve(*curve, color) for curve, color in zip(curves, cycle(COLORS), strict=False)]


def _truths(rows: Rows) -> list[Series]:
    return [_curve(rows, name, *shown) for name, shown in _ORACLE.items()]


def _both(log: TrainingLog, metric: str) -> list[Series]:
    """Make the faint curve of a metric in training and its curves in evaluations."""
    training = _curve(log.training, metric, "training", "grey")
    return [replace(training, style="faint"), *_evaluation_curves(log, metric)]


def _evaluation_curves(log: TrainingLog, metric: str) -> list[Series]:
    """Make a curve for each dataset, with its interval if there is one."""
    return _with_intervals({dataset or "evaluation": rows for dataset, rows in log.evaluations.items()}, metric)


def _with_intervals(evaluations: dict[str, Rows], metric: str) -> list[Series]:
    """Make a curve of each evaluation by its label, with its interval if there is one."""
    curves = _colored([(rows, metric, label) for label, rows in evaluations.items()])
    lows, highs = (
        _colored([(rows, f"{metric}_{end}", "") for rows in evaluations.values()]) for end in ("low", "high")
    )
    return [
        replace(curve, low=low.y, high=high.y) if low.x == high.x == curve.x else curve
        for curve, low, high in zip(curves, lows, highs, strict=True)
    ]


def _shares(rows: Rows) -> list[Series]:
    """Make stacked curves of the time shares of the phases."""
    metrics = [f"time/{phase}" for phase in _PHASES]
    step = _step_of(rows)
    rows = [row for row in rows if "environment/steps" in row and sum(row.get(metric, 0.0) for metric in metrics) > 0]
    seconds = {metric: _thinned([row.get(metric, 0.0) for row in rows]) for metric in metrics}
    x = _thinned([row[step] for row in rows])
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
    """Average neighbours until at most `MAX_POINTS` are left, and round them to visible digits."""
    size = math.ceil(len(values) / MAX_POINTS)
    groups = (values[i : i + size] for i in range(0, len(values), max(1, size)))
    return [float(f"{sum(group) / len(group):.6g}") for group in groups]
