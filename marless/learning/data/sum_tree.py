"""A sum tree in one array: vectorised draws in proportion to priorities, and priority updates
(Schaul et al. 2016, Appendix B.2.1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class SumTree:
    """Priorities of `size` samples, all 0 at first.

    Node i has children 2i and 2i + 1; the root is node 1, and sample s is leaf s of the last level. A node is always
    computed as the float64 sum of its two children, never updated by differences, so that the tree depends only on its
    leaves: a rebuilt tree draws exactly as the original.
    """

    def __init__(self, size: int) -> None:
        self._levels = max(1, (size - 1).bit_length())
        self._nodes = np.zeros(2 << self._levels)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._nodes[1])

    def __getitem__(self, sample: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._nodes[sample + (1 << self._levels)]

    def set(self, sample: NDArray[np.int64], priority: NDArray[np.floating] | float) -> None:
        """Set the priorities of samples, which must not be negative; if a sample occurs twice, the last one counts."""
        node = sample + (1 << self._levels)
        self._nodes[node] = priority
        for _ in range(self._levels):
            node = node >> 1
            if node.size > 1:
                node = node[np.flatnonzero(np.append(True, node[1:] != node[:-1]))]  # neighbours share parents
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]

    def find(self, mass: NDArray[np.float64]) -> NDArray[np.int64]:
        """The sample at which the cumulative sum of priorities exceeds each `mass` in [0, total); never one of priority
        0.
        """
        node, mass = np.ones(mass.shape, np.int64), mass.copy()
        for _ in range(self._levels):
            left = 2 * node
            below = self._nodes[left]
            right = (mass >= below) & (
                self._nodes[left + 1] > 0
            )  # rounding errors must not lead to samples of priority 0
            mass -= np.where(right, below, 0.0)
            node = left + right
        return node - (1 << self._levels)
