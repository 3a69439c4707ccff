"""The formulas of staleness: weights of gradients, and the bound on their mean staleness. Pure functions.

Staleness is the store's clock now minus the clock of the version that a gradient was computed from.
"""

from __future__ import annotations

from marless.learning.aggregation.config import Weights


def weight(staleness: int, weights: Weights, root: float) -> float:
    """The weight of a gradient, in (0, 1]; 1 if it is fresh.

    root: δ^(−1/v) (Yu et al. 2024). reciprocal: 1/δ (Zhang et al. 2016).
    """
    if staleness == 0 or weights == "equal":
        return 1.0
    return float(staleness ** (-1.0 / root if weights == "root" else -1.0))


def printed_bound(record: float, decay: float, k: int) -> float:
    """β_k = δ_max · d^k of the k-th round after the first, k from 1 (Yu et al. 2024)."""
    return float(record * decay**k)


def authors_bound(record: float, decay: float, k: int) -> float:
    """The same in the public code of Yu et al. 2024: int(δ_max · d^(k−1)) + 1, at least 1 and at most δ_max."""
    return float(max(1, min(int(record * decay ** (k - 1)) + 1, record)))
