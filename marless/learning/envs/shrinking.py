"""Makes pictures smaller: each new pixel is the mean of the area that it covers, as with OpenCV's INTER_AREA.

Equal to OpenCV bit by bit, which takes float32 numbers in this order: sums of rows first, then of columns. Means that
end in exactly one half are rounded by what the order leaves of them, so another order would change pixels by 1. Only
where both sides are divided by a whole number does OpenCV add up in another way.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


class Shrinking:
    """Makes pictures of one size pictures of another, which is nowhere larger. Sizes are (height, width)."""

    def __init__(self, old: tuple[int, int], new: tuple[int, int]) -> None:
        self.new = new
        self._rows, self._columns = (_terms(*lengths) for lengths in zip(old, new, strict=True))

    def __call__(self, picture_CHW: Pixels) -> Pixels:
        """A picture uint8 [channels, height, width] as one of the new size."""
        numbers_CHW, (height, width) = picture_CHW.astype(np.float32), self.new
        narrow_CHW = np.zeros((*picture_CHW.shape[:2], width), np.float32)
        for pixels_W, weight_W in self._columns:
            narrow_CHW += numbers_CHW[:, :, pixels_W] * weight_W
        small_CHW = np.zeros((len(picture_CHW), height, width), np.float32)
        for pixels_H, weight_H in self._rows:
            small_CHW += narrow_CHW[:, pixels_H] * weight_H[:, None]
        found: Pixels = np.rint(small_CHW).astype(np.uint8)
        return found


def _terms(old: int, new: int) -> list[tuple[NDArray[np.intp], NDArray[np.float32]]]:
    """The terms of each new pixel along one side, in their order: numbers of old pixels [new], and weights [new]."""
    step = old / new
    begin_S, terms = np.arange(new) * step, []
    for offset in range(math.ceil(step) + 1):
        pixels_S = np.floor(begin_S).astype(np.intp) + offset
        covered_S = np.minimum(begin_S + step, pixels_S + 1) - np.maximum(begin_S, pixels_S)
        weight_S = (np.maximum(covered_S, 0) / step).astype(np.float32)
        if weight_S.any():
            terms.append((np.minimum(pixels_S, old - 1), weight_S))
    return terms
