# SPDX-License-Identifier: Apache-2.0

"""What a cell says: success in the end, on the way and at a cost, and what it cost; and values of several seeds."""

import math
from collections.abc import Callable, Hashable
from itertools import combinations
from statistics import mean, median, stdev

import numpy as np
from scipy.stats import t, ttest_1samp


SUCCESS = "episode/success_rate"
COSTS = {
    "environment_steps": "environment steps",
    "generated_tokens": "generated tokens",
    "gradient_steps": "gradient steps",
    "seconds": "seconds",
}
LEAST_SEEDS = 3  # with two, an interval by Student's t excludes hardly anything


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


def over_seeds(values: dict[str, float | None]) -> dict | None:
    """
    Average what was measured: `mean`, its 95 % interval `low` to `high` (`None` for one seed), `worst`, and `seeds`.
    """
    values = {seed: round(value, 4) for seed, value in values.items() if value is not None}
    if not values:
        return None
    center, low, high = mean(values.values()), None, None
    if len(values) > 1:
        margin = float(t.ppf(0.975, len(values) - 1)) * stdev(values.values()) / len(values) ** 0.5
        low, high = round(center - margin, 4), round(center + margin, 4)
    return {"mean": round(center, 4), "low": low, "high": high, "worst": min(values.values()), "seeds": values}


def of_cells(cells: list[dict], value: Callable[[dict], float | None]) -> dict | None:
    """Average a value of each cell over their seeds."""
    return over_seeds({str(cell["seed"]): value(cell) for cell in cells})


def difference(method: dict | None, plain: dict | None) -> dict | None:
    """Return the difference of two values of [`over_seeds`], paired by seed."""
    pairs = method["seeds"].keys() & plain["seeds"].keys() if method and plain else ()
    return over_seeds({seed: method["seeds"][seed] - plain["seeds"][seed] for seed in sorted(pairs)})


def holm(differences: dict[Hashable, dict | None]) -> dict[Hashable, float]:
    """Return p-values of paired differences by Student's t, corrected by Holm, without those of too few seeds."""
    seeds = {name: list(of["seeds"].values()) for name, of in differences.items() if of}
    seeds = {name: values for name, values in seeds.items() if len(values) >= LEAST_SEEDS}
    # Seeds that agree to the last digit have no spread to test by.
    plain = {name: 1.0 if len({*v}) == 1 else float(ttest_1samp(v, 0).pvalue) for name, v in seeds.items()}
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(plain, key=plain.get)):
        largest = max(largest, min(1.0, (len(plain) - rank) * plain[name]))
        corrected[name] = largest
    return corrected


def permutation_p(ours: list[float], theirs: list[float]) -> float:
    """Return the share of all ways to divide the runs in which `ours` would have at least as high a mean as it has."""
    runs, total = [*ours, *theirs], sum(ours) - 1e-9
    sums = [sum(chosen) >= total for chosen in combinations(runs, len(ours))]
    return sum(sums) / len(sums)


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
