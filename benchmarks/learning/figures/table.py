# SPDX-License-Identifier: Apache-2.0

"""Names and numbers in the tables and the plot."""

from benchmarks import reporting


LABELS = {
    "nlac": "NLAC",
    "hindsight": "Hindsight",
    "grpo": "GRPO",
    "rft": "RFT",
    "scalar": "Scalar critic",
    "base": "Base model",
    "rft_unanchored_long": "RFT (unanchored, long)",
    "scalar_five": "Scalar critic (five times the steps)",
    "self_distillation": "Self-distillation",
    "self_distillation_reverse": "Self-distillation (reverse)",
    "taught": "Taught",
}


def label(method: str) -> str:
    """Return the name of a method."""
    if method in LABELS:
        return LABELS[method]
    kind, _, setting = method.partition("_")
    return f"{LABELS[kind]} ({setting.replace('_', ' ')})"


def task_label(task: str) -> str:
    """Return the name of a task."""
    name, _, kind = task.partition("desk_")
    return f"Service desk ({kind})" if kind else name.replace("_", " ").capitalize()


def number(value: float | None) -> str:
    """Format a cost."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: dict | None) -> str:
    """Format a mean success with its interval, cut at 0 and 1."""
    return "–" if value is None else reporting.interval(value)


def gap(value: dict | None) -> str:
    """Format a mean difference with its interval."""
    if value is None or value["low"] is None:
        return "–" if value is None else f"{value['mean']:+.2f}"
    return f"{value['mean']:+.2f} ({value['low']:+.2f} to {value['high']:+.2f})"
