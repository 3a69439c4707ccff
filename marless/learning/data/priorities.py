"""Priorities of the samples of a replay, and draws in proportion to them (Schaul et al. 2016, §3.3 and §3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from marless.learning.data.frames import Rows
from marless.learning.data.ring import RingRound

FIRST = 1.0
"""Priority of new samples before any has been updated; it is no error, so it does not count among the highest."""
BOUNDS = 1e-6, 1e6
"""Least and greatest priority: samples without error stay drawable (ε of Schaul et al. 2016, §3.3), none dominates."""
Arrays = Mapping[str, NDArray[np.generic]]
FloatArray = NDArray[np.float32]
Unit = Literal["transitions", "episodes"]


class Priorities:
    """Priorities, to the power of `alpha`, of the samples of verified rounds; new ones have the highest so far."""

    def __init__(self, capacity: int, alpha: float, unit: Unit) -> None:
        self.unit = unit
        self._alpha = alpha
        self._highest = 0.0
        """Of all updates so far; 0 before the first."""
        self._tree = SumTree(capacity)

    def add(self, each: RingRound) -> None:
        """Add the samples of a round that has just been verified, with restored priorities if it has some."""
        new = self._highest or FIRST
        self._tree.set(each.samples(self.unit), new if each.priorities is None else each.priorities)

    def discard(self, each: RingRound) -> None:
        """Remove the samples of a round."""
        if each.rows is not None:
            self._tree.set(each.samples(self.unit), 0.0)

    def update(self, row: Rows, priority: NDArray[np.floating]) -> None:
        known = (self._tree[row] > 0) & ~np.isnan(priority)
        bounded = np.fmin(np.fmax(priority, BOUNDS[0]), BOUNDS[1]).astype(np.float64)
        # Rounded to what is published, so that a tree that is restored has the very leaves of this one.
        leaf = (bounded**self._alpha).astype(np.float32)
        self._tree.set(row[known], leaf[known])
        self._highest = max(self._highest, float(leaf[known].max(initial=0.0)))

    def draw(self, among: int, rng: np.random.Generator, count: int, beta: float) -> tuple[Rows, FloatArray]:
        """P(i) = p_i^α / Σ p^α; w_i = (N · P(i))^−β / max w over this draw; stratified, of `among` = N samples."""
        total = self._tree.total
        row = self._tree.find((np.arange(count) + rng.random(count)) / count * total)
        weight = (among * self._tree[row] / total) ** -beta
        return row, (weight / weight.max()).astype(np.float32)

    def arrays(self, rounds: Sequence[RingRound]) -> Arrays:
        """What to publish: the priorities of all samples, by round."""
        # The tree does not have the samples of rounds that have not been verified.
        known = [
            each.priorities
            if each.rows is None and each.priorities is not None
            else self._tree[each.samples(self.unit)].astype(np.float32)
            for each in rounds
        ]
        return {
            "priorities": np.concatenate([np.zeros(0, np.float32), *known]),
            "highest": np.array([self._highest], np.float32),
        }

    def restore(self, arrays: Arrays, rounds: Sequence[RingRound], capacity: int) -> None:
        """Continue from published arrays; raises KeyError, IndexError or ValueError for others."""
        highest = float(arrays["highest"][0])
        units = np.cumsum([each.units(self.unit) for each in rounds], dtype=np.int64)
        if len(arrays["priorities"]) != units[-1:].sum():
            raise ValueError(f"{len(arrays['priorities'])} priorities do not fit the rounds")
        for each, part in zip(rounds, np.split(arrays["priorities"], units), strict=False):
            each.priorities = part.astype(np.float32)
        self._highest, self._tree = highest, SumTree(capacity)


class SumTree:
    """Priorities of `size` samples, all 0 at first, in one array (Schaul et al. 2016, Appendix B.2.1).

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
            # Rounding errors must not lead to samples of priority 0.
            right = (mass >= below) & (self._nodes[left + 1] > 0)
            mass -= np.where(right, below, 0.0)
            node = left + right
        return node - (1 << self._levels)
