"""Picks the points of long curves that a screen can show: the lowest and the highest of each stretch are kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def chosen(columns: Sequence[NDArray[np.float64]], first: int, end: int, points: int) -> NDArray[np.intp]:
    """Indexes in [first, end) at which curves are shown, ascending.

    Each curve is cut into `points` / 2 stretches of equally many known values, and of each stretch the lowest and the
    highest value are kept, so that no peak is lost. The first and the last index are kept, too.

    Args:
        columns: Values by index; NaN where a curve has none.
        first: The first index of the range.
        end: The index after the last one.
        points: Values kept of each curve, about.
    """
    found = [np.asarray([first, end - 1] if end > first else [], dtype=np.intp)]
    for values in columns:
        known = np.flatnonzero(~np.isnan(values[first:end])) + first
        found.append(known if len(known) <= points else _extremes(values, known, max(points // 2, 1)))
    return np.unique(np.concatenate(found))


def _extremes(values: NDArray[np.float64], known: NDArray[np.intp], stretches: int) -> NDArray[np.intp]:
    bounds = np.linspace(0, len(known), stretches + 1).astype(np.intp)
    picked = [known[0], known[-1]]
    for start, end in pairwise(bounds):
        part = values[known[start:end]]
        picked += [known[start + int(part.argmin())], known[start + int(part.argmax())]]
    return np.asarray(picked, dtype=np.intp)
