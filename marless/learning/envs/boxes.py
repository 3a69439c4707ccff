"""How numbers without bounds, in the units in which policies act, become the components of a Box.

| bounds | component, given u |
|---|---|
| both | scaled so that −1 and 1 are the bounds, and clipped |
| only a lower one | low + ln(1 + eᵘ) |
| only an upper one | high − ln(1 + e⁻ᵘ) |
| none | u |

All grow with u. Where there is one bound, u is about the distance from it, and every u is another action: clipped ones
would all be the bound itself if it is far above 0. Bounds beyond ±1e30 count as none: float32's largest number was
once the way to write it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from marless.learning.envs.base import ActionArray, Box, FloatArray

BOUNDLESS = 1e30
"""Bounds of this size and beyond count as none."""


def bounds_of(space: Box) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper bounds, float64 [A]; infinite where there is none."""
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    return np.where(low <= -BOUNDLESS, -np.inf, low), np.where(high >= BOUNDLESS, np.inf, high)


def into(space: Box, unit: ActionArray) -> ActionArray:
    """Components of the box for numbers [..., A], float32."""
    low, high = (each.astype(np.float32) for each in bounds_of(space))
    above, below = np.isfinite(low), np.isfinite(high)
    bounded = above & below
    if bounded.all():
        return np.clip(_scaled(unit, low, high), low, high)
    zero = np.float32(0)
    # `where` computes all of its branches: bounds that are infinite are replaced, lest inf
    # · 0 makes a warning and a NaN.
    found = np.where(bounded, _scaled(unit, np.where(bounded, low, zero), np.where(bounded, high, zero)), unit)
    # ln(1 + eᵘ) as `logaddexp`, in which a large u does not overflow.
    found = np.where(above & ~below, np.where(above, low, zero) + np.logaddexp(zero, unit), found)
    found = np.where(below & ~above, np.where(below, high, zero) - np.logaddexp(zero, -unit), found)
    within: FloatArray = np.clip(found, low, high).astype(np.float32)
    return within


def _scaled(unit: ActionArray, low: FloatArray, high: FloatArray) -> FloatArray:
    scaled: FloatArray = low + (unit + np.float32(1)) * (np.float32(0.5) * (high - low))
    return scaled
