# SPDX-License-Identifier: Apache-2.0

"""Sampling of indices in proportion to their weights, in logarithmic time."""

import numpy as np


class SumTree:
    """Weights of indices from 0 on, zero until they are set, and a binary tree of their sums. It grows with them."""

    def __init__(self):
        # The binary tree in one array: node i has the children 2i and 2i + 1, the leaves are the indices.
        self._num_leaves = 2
        self._sums = np.zeros(2 * self._num_leaves)

    def set(self, indices: np.ndarray, weights: np.ndarray) -> None:
        """Set the weights of at least one index. If an index occurs twice, its last weight counts."""
        while indices.max() >= self._num_leaves:
            self._double()
        nodes = indices + self._num_leaves
        self._sums[nodes] = weights
        while nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def _double(self) -> None:
        """Make room for as many indices again, all with weight zero: the tree becomes the left half of a new one."""
        sums = np.zeros(4 * self._num_leaves)
        sums[1] = self._sums[1]
        width = 1
        while width <= self._num_leaves:
            sums[2 * width : 3 * width] = self._sums[width : 2 * width]
            width *= 2
        self._num_leaves *= 2
        self._sums = sums

    def draw(self, fractions: np.ndarray) -> np.ndarray:
        """Return the index at each fraction, in [0, 1), of the cumulative weights; never one with weight zero."""
        remainder = fractions * self._sums[1]
        node = np.ones(len(fractions), dtype=np.int64)
        while node[0] < self._num_leaves:
            left = self._sums[2 * node]
            # Never enter an empty subtree, however the sums were rounded.
            right = (remainder >= left) & (self._sums[2 * node + 1] > 0) | (left == 0)
            remainder -= np.where(right, left, 0.0)
            node = 2 * node + right
        return node - self._num_leaves
