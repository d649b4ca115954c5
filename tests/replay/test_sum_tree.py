# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest

from trl_nlac.replay.sum_tree import SumTree


class TestSumTree:
    @pytest.mark.parametrize(
        "sizes", [[size] * 20 for size in (1, 2, 3, 7, 8, 100)] + [[1, 2, 5, 4000, 5000]], ids=max
    )
    def test_draws_by_cumulative_sums(self, sizes):
        """Also while it grows."""
        rng = np.random.default_rng(max(sizes))
        tree, weights = SumTree(), np.zeros(max(sizes))
        for size in sizes:
            indices = rng.integers(size, size=5)
            weights[indices] = rng.integers(0, 4, size=5) * 0.25  # sums are exact
            tree.set(indices, weights[indices])
            if weights.any():
                fractions = rng.random(50)
                expected = np.searchsorted(weights.cumsum(), fractions * weights.sum(), side="right")
                assert tree.draw(fractions).tolist() == expected.tolist()

    def test_rounding_never_draws_what_has_no_weight(self):
        tree = SumTree()
        tree.set(np.array([0, 2]), np.array([0.3, 0.7]))
        largest = np.nextafter(1, 0)
        assert largest * 1.0 - 0.3 >= 0.7  # as if it were past the third index
        assert tree.draw(np.array([0.0, 0.5, largest])).tolist() == [0, 2, 2]
