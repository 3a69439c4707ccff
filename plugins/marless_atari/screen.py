"""Makes pictures smaller: each new pixel is the mean of the area that it covers, as with OpenCV's INTER_AREA.

Equal to OpenCV bit by bit, which takes float32 numbers in this order: sums of rows first, then of columns. Means that
end in exactly one half are rounded by what the order leaves of them, so another order would change pixels by 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


class Shrinking:
    """Makes pictures of [height, width] squares of one size, which must be smaller, and no whole fraction of both."""

    def __init__(self, height: int, width: int, size: int) -> None:
        self._size = size
        self._rows, self._columns = _terms(height, size), _terms(width, size)

    def __call__(self, picture_CHW: Pixels) -> Pixels:
        """A picture uint8 [channels, height, width] as uint8 [channels, size, size]."""
        numbers_CHW = picture_CHW.astype(np.float32)
        narrow_CHS = np.zeros((*picture_CHW.shape[:2], self._size), np.float32)
        for pixels_S, weight_S in self._columns:
            narrow_CHS += numbers_CHW[:, :, pixels_S] * weight_S
        small_CSS = np.zeros((len(picture_CHW), self._size, self._size), np.float32)
        for pixels_S, weight_S in self._rows:
            small_CSS += narrow_CHS[:, pixels_S] * weight_S[:, None]
        found: Pixels = np.rint(small_CSS).astype(np.uint8)
        return found


def _terms(length: int, size: int) -> list[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """The terms of each new pixel along one side, in their order: numbers of old pixels [size], and weights [size]."""
    step = length / size
    begin_S, terms = np.arange(size) * step, []
    for offset in range(math.ceil(step) + 1):
        pixels_S = np.floor(begin_S).astype(np.intp) + offset
        covered_S = np.minimum(begin_S + step, pixels_S + 1) - np.maximum(begin_S, pixels_S)
        weight_S = (np.maximum(covered_S, 0) / step).astype(np.float32)
        if weight_S.any():
            terms.append((np.minimum(pixels_S, length - 1), weight_S))
    return terms
