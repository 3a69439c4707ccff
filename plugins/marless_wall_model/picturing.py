"""Draws a flow as pixels: the velocity along the stream, slow fluid blue and fast fluid red."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless_wall_model.channel import Channel
from marless_wall_model.equilibrium import matching_layer

Pixels = NDArray[np.uint8]
_HEIGHT = 160
"""Pixels of δ."""
_SLOW, _MEAN, _FAST = (33, 102, 172), (247, 247, 247), (178, 24, 43)
_GAP = 4
"""Pixels between both slices."""


def drawn(channel: Channel) -> Pixels:
    """Two slices, uint8 [height, width, 3]: from the side, with the wall at the bottom, and from above, near the wall.

    From the side, colours span the velocities from 0 to the largest; from above, three deviations around the mean.
    """
    grid, u = channel.grid, np.nan_to_num(channel.u.astype(np.float64))
    side, above = u[::-1, :, 0], u[matching_layer(grid)].T
    length, width = grid.length
    mean, spread = float(above.mean()), max(float(above.std()), 1e-9)
    views = (
        _enlarged(_coloured(side / max(float(side.max()), 1e-9)), grid.height, length),
        _enlarged(_coloured((above - mean) / (6 * spread) + 0.5), width, length),
    )
    gap = np.full((_GAP, views[0].shape[1], 3), 255, np.uint8)
    return np.concatenate([views[0], gap, views[1]])


def _coloured(shares: NDArray[np.float64]) -> Pixels:
    """Colours of numbers from 0 to 1."""
    at, colours = np.clip(shares, 0, 1)[..., None] * 2, np.array((_SLOW, _MEAN, _FAST), np.float64)
    first = np.minimum(at.astype(np.intp), 1)
    mixed = colours[first[..., 0]] * (1 - (at - first)) + colours[first[..., 0] + 1] * (at - first)
    pixels: Pixels = mixed.astype(np.uint8)
    return pixels


def _enlarged(pixels: Pixels, height: float, length: float) -> Pixels:
    """The same picture with `_HEIGHT` pixels for each δ."""
    rows = np.arange(round(height * _HEIGHT)) * pixels.shape[0] // round(height * _HEIGHT)
    columns = np.arange(round(length * _HEIGHT)) * pixels.shape[1] // round(length * _HEIGHT)
    enlarged: Pixels = pixels[rows][:, columns]
    return enlarged
