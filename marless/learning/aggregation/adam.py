"""Adam for one net in NumPy; `marless.learning.nets.adam` is the same for stacks of nets in torch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

BETA1, BETA2 = 0.9, 0.999


def clip_norm_(gradient_D: NDArray[np.float32], limit: float) -> float:
    """Scale a gradient in place to an L2 norm of at most `limit`; returns the norm before."""
    norm = float(np.linalg.norm(gradient_D))
    if norm > limit:
        gradient_D *= np.float32(limit / norm)
    return norm


def adam_(
    flat_D: NDArray[np.float32],
    first_D: NDArray[np.float32],
    second_D: NDArray[np.float32],
    count: int,
    gradient_D: NDArray[np.float32],
    *,
    lr: float,
    eps: float,
) -> None:
    """One step in place; `count` is the number of steps with this one.

    m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², θ ← θ − lr · (m / c₁) / (√(v / c₂) + ε), c = 1 − β^count. Source: Kingma
    & Ba 2015, algorithm 1. As in `marless.learning.nets.adam`, the corrections are folded into two constants.
    """
    correction1, correction2 = 1 - BETA1**count, 1 - BETA2**count
    first_D += np.float32(1 - BETA1) * (gradient_D - first_D)
    second_D *= np.float32(BETA2)
    second_D += np.float32(1 - BETA2) * np.square(gradient_D)
    denominator_D = np.sqrt(second_D)
    denominator_D *= np.float32(correction1 / math.sqrt(correction2))
    denominator_D += np.float32(correction1 * eps)
    flat_D -= np.float32(lr) * (first_D / denominator_D)
