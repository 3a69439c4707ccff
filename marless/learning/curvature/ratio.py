"""The convexity ratio C of an objective: the ratio of its largest upward to its largest downward curvature."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LIMIT = 1000.0
"""C is limited to [1 / LIMIT, LIMIT]: wide enough for all ratios beyond sampling noise, and narrow enough that the
other values of a window stay distinct when they are normalised together."""
_FLAT = LIMIT * float(np.finfo(np.float64).tiny)
"""Curvature below this counts as 0, because 1/LIMIT of it would underflow."""


def convexity_ratio(highest_P: NDArray[np.float64], lowest_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """C = −λ_max/λ_min of the MAXIMISED objective, from its Hessian's extreme eigenvalues [P]; finite and positive.

    Negating the objective gives 1/C, so a loss, as in Nitro's code, must be negated first. The formula is not defined
    for an objective that curves one way only, so each end counts as at least 1/LIMIT of the other: C is LIMIT without a
    downward direction (λ_min ≥ 0), 1/LIMIT without an upward one (λ_max ≤ 0), and 1 if the objective is flat or its
    Hessian not finite.
    Source: Wei et al. 2025, §4.2, after Nitro (PVLDB 18(1)); the limits are ours, the papers give none.
    """
    up_P, down_P = np.maximum(highest_P, 0.0), np.maximum(-lowest_P, 0.0)
    largest_P = np.maximum(up_P, down_P)
    known_P = np.isfinite(highest_P) & np.isfinite(lowest_P) & (largest_P > _FLAT)
    floor_P = np.where(known_P, largest_P, 1.0) / LIMIT
    up_P, down_P = (np.maximum(np.where(known_P, each_P, 0.0), floor_P) for each_P in (up_P, down_P))
    ratio_P: NDArray[np.float64] = np.clip(up_P / down_P, 1 / LIMIT, LIMIT)
    return ratio_P
