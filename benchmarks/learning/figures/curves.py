# SPDX-License-Identifier: Apache-2.0

"""What a cell says: success in the end, on the way and at a cost, and what it cost."""

import math
from statistics import mean, median

import numpy as np

from benchmarks.learning.figures.seeds import over_seeds


SUCCESS = "episode/success_rate"
COSTS = {
    "environment_steps": "environment steps",
    "generated_tokens": "generated tokens",
    "gradient_steps": "gradient steps",
    "seconds": "seconds",
}


def final_success(cell: dict) -> float:
    """Return the success on held-out instances at the end of a run."""
    return cell["final"]["held_out"][SUCCESS]


def training_success(cell: dict) -> float | None:
    """Return the success on instances of training at the end of a run."""
    return cell["final"].get("train", {}).get(SUCCESS)


def decoded_success(cell: dict, temperature: float) -> float | None:
    """Return the success on held-out instances at a temperature, with no token left out, where it was measured."""
    for of in cell.get("decoded", ()):
        if (of["instances"], of["temperature"], of["min_p"]) == ("held_out", temperature, 0):
            return of["success"]
    return cell["final"].get("greedy", {}).get(SUCCESS) if temperature == 0 else None


def spent(cell: dict, cost: str) -> float | None:
    """Return what a run cost, or `None` if it did not count that."""
    return cell["points"][-1].get(cost)


def success_at(cell: dict, cost: str, value: float) -> float:
    """Return the success at a cost, on straight lines between evaluations, and constant after the last."""
    return float(np.interp(value, [p[cost] for p in cell["points"]], [p[SUCCESS] for p in cell["points"]]))


def area(cell: dict, steps: float) -> float:
    """Return the mean success up to this number of environment steps: the area under the curve over the steps."""
    grid = [0.0, *(p["environment_steps"] for p in cell["points"] if 0 < p["environment_steps"] < steps), steps]
    success = np.array([success_at(cell, "environment_steps", at) for at in grid])
    return float(((success[1:] + success[:-1]) / 2 * np.diff(grid)).sum() / steps)


def reach(cells: list[dict], share: float) -> dict[str, float | None]:
    """
    Return the costs of the first evaluation with this share of the oracle's success: the median over seeds, where
    seeds that never reach it count as infinite, or `None` if that is infinite; and `num_seeds` that reach it.
    """

    def first(cell: dict) -> dict | None:
        success = share * cell.get("oracle_success", 1.0)
        return next((point for point in cell["points"] if point[SUCCESS] >= success), None)

    firsts = [first(cell) for cell in cells]
    medians = {cost: median(point[cost] if point else math.inf for point in firsts) for cost in COSTS}
    found = {cost: value if math.isfinite(value) else None for cost, value in medians.items()}
    return {"num_seeds": sum(point is not None for point in firsts), **found}


def verdict_accuracy(point: dict) -> float | None:
    """Return the mean of the rates of right "Yes" and right "No": a constant verdict has 0.5."""
    rates = [point.get(f"oracle/verdict_{word}_rate") for word in ("yes", "no")]
    return None if None in rates else mean(rates)


def mean_curve(cells: list[dict]) -> dict[str, list[float]]:
    """
    Return the mean success at as many even steps as there are evaluations. A seed that has ended keeps its value.
    """
    last = max(spent(cell, "environment_steps") for cell in cells)
    grid = np.linspace(0, last, max(len(cell["points"]) for cell in cells))
    columns = [
        over_seeds({str(cell["seed"]): success_at(cell, "environment_steps", x) for cell in cells}) for x in grid
    ]
    return {"steps": list(grid), **{name: [column[name] for column in columns] for name in ("mean", "low", "high")}}
