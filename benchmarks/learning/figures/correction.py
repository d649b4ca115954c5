# SPDX-License-Identifier: Apache-2.0

"""Which of many differences are clear, where some would seem so by chance."""

from collections.abc import Hashable

from scipy.stats import ttest_1samp

from benchmarks.learning.figures.seeds import LEAST_SEEDS


def holm(differences: dict[Hashable, dict | None]) -> dict[Hashable, float]:
    """
    Return the p-values of differences, paired by seed, by Student's t, and corrected by Holm for their number.

    Args:
        differences (`dict[Hashable, dict | None]`):
            By any name, from [`~learning.figures.seeds.difference`]. Those of fewer than `LEAST_SEEDS` seeds are
            left out.
    """
    seeds = {name: list(of["seeds"].values()) for name, of in differences.items() if of}
    seeds = {name: values for name, values in seeds.items() if len(values) >= LEAST_SEEDS}
    # Seeds that agree to the last digit have no spread to test by.
    plain = {name: 1.0 if len({*v}) == 1 else float(ttest_1samp(v, 0).pvalue) for name, v in seeds.items()}
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(plain, key=plain.get)):
        largest = max(largest, min(1.0, (len(plain) - rank) * plain[name]))
        corrected[name] = largest
    return corrected


def add_corrected(differences: dict[Hashable, dict | None]) -> None:
    """Write the corrected p-value of each difference that [`holm`] tests into it (`p_holm`)."""
    for name, p_value in holm(differences).items():
        differences[name]["p_holm"] = round(p_value, 4)
