# SPDX-License-Identifier: Apache-2.0

"""Values of several seeds: means with their intervals, differences and ratios."""

import math
from collections.abc import Callable
from statistics import mean, stdev

from benchmarks import reporting


LEAST_SEEDS = 3  # with two, an interval by Student's t excludes hardly anything


def over_seeds(values: dict[str, float | None]) -> dict | None:
    """
    Average the values of seeds.

    Args:
        values (`dict[str, float | None]`):
            By seed; `None` where the value was not measured.

    Returns:
        `dict`: `mean`; its 95 % interval `low` to `high` by Student's t, `None` for a single seed; `worst`, the
        smallest value; and `seeds`, the values. `None` if nothing was measured.
    """
    values = {seed: round(value, 4) for seed, value in values.items() if value is not None}
    if not values:
        return None
    center, low, high = mean(values.values()), None, None
    if len(values) > 1:
        margin = reporting.T_95[len(values)] * stdev(values.values()) / len(values) ** 0.5
        low, high = round(center - margin, 4), round(center + margin, 4)
    return {"mean": round(center, 4), "low": low, "high": high, "worst": min(values.values()), "seeds": values}


def of_cells(cells: list[dict], value: Callable[[dict], float | None]) -> dict | None:
    """Average a value of each cell over their seeds."""
    return over_seeds({str(cell["seed"]): value(cell) for cell in cells})


def difference(method: dict | None, plain: dict | None) -> dict | None:
    """Return the difference of two values of [`over_seeds`], paired by seed."""
    pairs = method["seeds"].keys() & plain["seeds"].keys() if method and plain else ()
    return over_seeds({seed: method["seeds"][seed] - plain["seeds"][seed] for seed in sorted(pairs)})


def ratio(method: dict | None, plain: dict | None) -> dict | None:
    """
    Return the ratio of two values of [`over_seeds`], paired by seed: the geometric `mean`, with its 95 % interval.
    `None` if a seed of `method` has no pair, or one of the two is 0.
    """
    pairs = [(value, plain["seeds"].get(seed)) for seed, value in method["seeds"].items()] if method and plain else []
    if not pairs or not all(ours and theirs for ours, theirs in pairs):
        return None
    logarithms = over_seeds({str(i): math.log(ours / theirs) for i, (ours, theirs) in enumerate(pairs)})
    return {
        name: None if logarithms[name] is None else round(math.exp(logarithms[name]), 3)
        for name in ("mean", "low", "high")
    }
