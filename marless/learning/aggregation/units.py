"""The units of a critic's values in NumPy; `marless.learning.algos.ppo.normalise` is the same for stacks of critics in
torch.

Shapes: K outputs of the critic; moments are (Σw, Σw·x, Σw·x²), float64 [K, 3].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Moments = NDArray[np.float64]
_LEAST_STD, _ROUNDING = 1e-4, 2.0**-22
"""Least deviation of returns, and as a share of their mean: returns are float32."""


def updated_moments(moments_K3: Moments, batch_K3: Moments, decay: float) -> Moments:
    """Exponentially weighted moments after one more batch; an output without weight in it keeps its own."""
    updated_K3 = decay * moments_K3 + (1 - decay) * batch_K3
    return np.where(batch_K3[:, :1] > 0, updated_K3, moments_K3)


def mean_and_std(moments_K3: Moments) -> tuple[Moments, Moments]:
    """Mean and standard deviation, each [K, 1]; 0 and 1 before the first batch."""
    total_K1, first_K1, second_K1 = np.split(moments_K3, 3, axis=1)
    seen_K1 = total_K1 > 0
    safe_K1 = np.where(seen_K1, total_K1, 1.0)
    mean_K1 = first_K1 / safe_K1
    least_K1 = np.maximum(_ROUNDING * np.abs(mean_K1), _LEAST_STD)
    std_K1 = np.maximum(np.sqrt(np.maximum(second_K1 / safe_K1 - np.square(mean_K1), 0.0)), least_K1)
    return mean_K1, np.where(seen_K1, std_K1, 1.0)


def rescale_(layer_KH: NDArray[np.float32], before_K3: Moments, after_K3: Moments) -> None:
    """Rescale an output layer [K, inputs + 1] in place, so that values in units of the reward stay as they are.

    Source: van Hasselt et al. 2016, eq. 7-9.
    """
    (mean_K1, std_K1), (new_mean_K1, new_std_K1) = mean_and_std(before_K3), mean_and_std(after_K3)
    layer_KH *= (std_K1 / new_std_K1).astype(np.float32)
    layer_KH[:, -1:] += ((mean_K1 - new_mean_K1) / new_std_K1).astype(np.float32)
