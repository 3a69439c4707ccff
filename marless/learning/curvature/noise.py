"""The gradient noise scale: the number of samples at which the noise of a gradient is as large as the gradient."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LIMIT = 100.0
"""Noise scales are limited to LIMIT · B: with a batch of B samples, larger ones cannot be told from infinity."""


def noise_scale(
    small_square_P: NDArray[np.float64], big_square_P: NDArray[np.float64], small: float, big: float
) -> NDArray[np.float64]:
    """tr Σ / |G|² in samples, [P], from squared gradient norms over batches of `small` (b) and `big` (B) samples:

    ((|g_b|² − |g_B|²) / (1/b − 1/B)) / ((B|g_B|² − b|g_b|²) / (B − b)).

    Both parts are unbiased estimates of non-negative quantities, but may be negative themselves: a negative numerator
    counts as no noise (0), a denominator of 0 or less as no signal (LIMIT · B). The result is 0 for norms that are not
    finite, and for a gradient of 0. Raises ValueError unless 0 < b < B.
    Source: McCandlish et al. 2018, appendix A.1; the limits are ours.
    """
    if not 0 < small < big:
        raise ValueError(f"needs two batch sizes 0 < small < big, got {small} and {big}")
    finite_P = np.isfinite(small_square_P) & np.isfinite(big_square_P)
    small_square_P, big_square_P = np.where(finite_P, (small_square_P, big_square_P), 0.0)
    noise_P = np.maximum((small_square_P - big_square_P) / (1 / small - 1 / big), 0.0)
    signal_P = np.maximum((big * big_square_P - small * small_square_P) / (big - small), 0.0)
    most = LIMIT * big
    drowned_P = noise_P > most * signal_P
    quotient_P: NDArray[np.float64] = noise_P / np.where(drowned_P | (signal_P == 0), 1.0, signal_P)
    return np.where(drowned_P, most, quotient_P)
