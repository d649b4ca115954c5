# SPDX-License-Identifier: Apache-2.0

"""The table of the results of every method, and the names in it and in the plots."""

from benchmarks import reporting


LABELS = {
    "nlac": "NLAC",
    "hindsight": "Hindsight",
    "grpo": "GRPO",
    "rft": "RFT",
    "scalar": "Scalar critic",
    "base": "Base model",
    "base_refined": "Base model (refined)",
    "base_remembering": "Base model (remembering)",
}
STRONGER = {
    "grpo_long": "GRPO (long)",
    "rft_long": "RFT (long)",
    "rft_unanchored": "RFT (unanchored)",
    "rft_unanchored_long": "RFT (unanchored, long)",
    "scalar_five": "Scalar critic (five times the steps)",
    "self_distillation": "Self-distillation",
    "self_distillation_reverse": "Self-distillation (reverse)",
}
CONTROLS = {"taught": "Taught"}
COSTS = {"environment_steps": "environment steps", "generated_tokens": "generated tokens", "seconds": "seconds"}


def label(method: str) -> str:
    """Return the name of a method."""
    labels = {**LABELS, **STRONGER, **CONTROLS}
    if method in labels:
        return labels[method]
    return f"{LABELS['hindsight' if method.startswith('hindsight_') else 'nlac']} ({variant(method)})"


def variant(method: str) -> str:
    """Return the name of a setting of NLAC or hindsight, or of an ablation."""
    return method.removeprefix("nlac_").removeprefix("hindsight_").replace("_", " ")


def task_label(task: str) -> str:
    """Return the name of a task."""
    name, _, kind = task.partition("desk_")
    return f"Service desk ({kind})" if kind else name.replace("_", " ").capitalize()


def number(value: float | None) -> str:
    """Format a cost."""
    return "not reached" if value is None else f"{value:,.0f}"


def rate(value: dict | None) -> str:
    """Format a mean success with its interval, cut at 0 and 1."""
    return "–" if value is None else reporting.interval(value)


def gap(value: dict | None) -> str:
    """Format a mean difference with its interval."""
    if value is None or value["low"] is None:
        return "–" if value is None else f"{value['mean']:+.2f}"
    return f"{value['mean']:+.2f} ({value['low']:+.2f} to {value['high']:+.2f})"


def cost_table(costs: dict[str, dict[str, dict | None]]) -> str:
    """Format the mean of every cost over seeds, by the name of a method, as a table; `None` was not counted."""
    names = [cost.replace("_", " ") for cost in next(iter(costs.values()))]
    rows = [[method, *(number(cost["mean"]) if cost else "–" for cost in of.values())] for method, of in costs.items()]
    return reporting.table(["method", *names], rows)


def ending(figures: dict | None) -> str:
    """Format the final success of a method on a task, with the environment steps that it took if it trains."""
    if figures is None:
        return "–"
    steps = figures["spent"]["environment_steps"]
    return rate(figures["final"]) + (f" after {number(steps)}" if steps else "")


def comparison(summary: dict) -> str:
    """Format the final success and the environment steps of every method on every task as a table."""
    rows = [
        [task_label(name), *(ending(task["methods"].get(method)) for method in summary["methods"])]
        for name, task in summary["tasks"].items()
    ]
    return reporting.table(["task", *map(label, summary["methods"])], rows)
