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
_Term = tuple[NDArray[np.intp], NDArray[np.float32]]
"""For each new line of pixels, the number of an old line and its weight."""


class Shrinking:
    """Makes pictures of one size pictures of another, which is nowhere larger. Sizes are (height, width)."""

    def __init__(self, old: tuple[int, int], new: tuple[int, int]) -> None:
        self.new = new
        self._rows, self._columns = (_terms(*lengths) for lengths in zip(old, new, strict=True))

    def __call__(self, picture_CHW: Pixels) -> Pixels:
        """A picture uint8 [channels, height, width] as one of the new size."""
        # What is taken lies in one piece each time, a column of the picture and then a row: NumPy copies pieces fast.
        columns_WCH = np.ascontiguousarray(picture_CHW.transpose(2, 0, 1)).astype(np.float32)
        narrow_HCW = np.ascontiguousarray(_weighted_sums(columns_WCH, self._columns).transpose(2, 1, 0))
        small_HCW = _weighted_sums(narrow_HCW, self._rows)
        found: Pixels = np.rint(small_HCW, out=small_HCW).astype(np.uint8).transpose(1, 0, 2)
        return found


def _weighted_sums(old: NDArray[np.float32], terms: list[_Term]) -> NDArray[np.float32]:
    """The new lines of pixels, each the sum of its terms in their order; lines are along the first axis."""
    new: NDArray[np.float32] = np.zeros((len(terms[0][0]), *old.shape[1:]), np.float32)
    for lines, weights in terms:
        taken = old[lines]
        taken *= weights[:, None, None]
        new += taken
    return new


def _terms(old: int, new: int) -> list[_Term]:
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
