# SPDX-License-Identifier: Apache-2.0

"""Values of several seeds: means with their intervals, and differences."""

from collections.abc import Callable, Hashable
from itertools import combinations
from statistics import mean, stdev

from scipy.stats import ttest_1samp

from benchmarks import reporting


LEAST_SEEDS = 3  # with two, an interval by Student's t excludes hardly anything


def over_seeds(values: dict[str, float | None]) -> dict | None:
    """
    Average what was measured: `mean`, its 95 % interval `low` to `high` (`None` for one seed), `worst`, and `seeds`.
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
