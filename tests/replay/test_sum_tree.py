# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest

from trl_nlac.replay.sum_tree import SumTree


class TestSumTree:
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100])
    def test_draws_by_cumulative_sums(self, size):
        rng = np.random.default_rng(size)
        tree, weights = SumTree(), np.zeros(size)
        for _ in range(20):
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

    def test_grows(self):
        rng = np.random.default_rng(0)
        tree, weights = SumTree(), np.zeros(5000)
        for largest in (1, 2, 5, 4000, 5000):
            indices = rng.integers(largest, size=3)
            weights[indices] = rng.integers(1, 4, size=3) * 0.25
            tree.set(indices, weights[indices])
            fractions = rng.random(20)
            expected = np.searchsorted(weights.cumsum(), fractions * weights.sum(), side="right")
            assert tree.draw(fractions).tolist() == expected.tolist()
