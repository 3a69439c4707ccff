"""Staggering: each copy of a lane cuts one early episode short at a length of its own, so that copies fall out of step.

Copies that begin together and whose episodes last equally long would otherwise stay in step for ever: each round that
is shorter than an episode would show one part of it only, and most rounds no reward if that comes at the end.

An episode is cut as by a time limit: its return bootstraps from the observation after its last step, nothing that was
sampled is lost, and targets stay unbiased. It is not counted as an episode, because its return is that of a part.

Shape suffix: B copies of the lane.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.learning.envs.base import Arrays, BoolArray, saved

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2⁶⁴ divided by the golden ratio."""
_OPEN = -1
"""The limit of all copies while it is unknown how long episodes last."""
_HALF = np.uint64(32)


class Stagger:
    """The lengths at which episodes of a lane's copies are cut, and where that is still to be done.

    If the environment says how long an episode lasts, this is the first episode of each copy. If not, copies that ended
    an episode in the same step have shown it: once at least half of a lane's copies do so, their next one is cut.
    Nothing is cut if a round shows whole episodes.
    """

    def __init__(self, batch: int) -> None:
        self._limit_B = np.full(batch, _OPEN, np.int64)
        self._cuts = False
        self._index: int | None = None
        self._steps = 0

    def plan(self, index: int, longest: int | None, steps: int) -> None:
        """Begin a round of lane `index` in which `steps` steps are sampled; without this, nothing new is cut.

        `longest` is the length of an episode if the environment says so.
        """
        self._index, self._steps = index, steps
        if longest is not None and self._open:
            self._choose(np.ones(len(self._limit_B), np.bool_), longest)

    def due(self, steps_B: NDArray[np.int64]) -> BoolArray | None:
        """bool [B]: the episode is to be cut after its next step, given its steps so far; None if none is."""
        if not self._cuts:
            return None
        due_B: BoolArray = self._limit_B == steps_B + 1
        return due_B if due_B.any() else None

    def ended(self, ended_B: BoolArray, length_B: NDArray[np.int64]) -> None:
        """Tell that some episodes, at least one, have ended after `length_B` steps each."""
        if self._open:
            longest = int(length_B[ended_B].max())
            alike_B = ended_B & (length_B == longest)
            if 2 * np.count_nonzero(alike_B) >= len(ended_B):
                self._choose(alike_B, longest)
        elif self._cuts:
            self._limit_B[ended_B] = 0
            self._cuts = bool(self._limit_B.any())

    def save(self) -> dict[str, NDArray[np.generic]]:
        """A copy of the lengths: int64 [B], 0 where nothing is cut any more, −1 while none was chosen."""
        return {"limit": self._limit_B.copy()}

    def load(self, arrays: Arrays) -> None:
        """Continue with saved lengths; raises CorruptError."""
        limit_B = saved(arrays, "limit", "int64", self._limit_B.shape)
        if limit_B.min() < _OPEN or (limit_B.min() == _OPEN) != (limit_B.max() == _OPEN):
            raise CorruptError("carry: stagger/limit holds numbers that are no lengths of episodes")
        self._limit_B = limit_B.copy()
        self._cuts = bool((limit_B > 0).any())

    @property
    def _open(self) -> bool:
        return bool(self._limit_B[0] == _OPEN)

    def _choose(self, chosen_B: BoolArray, longest: int) -> None:
        """Choose lengths for the next episodes of these copies; that of a whole episode means no cut."""
        if self._index is None:
            return
        limit_B = lengths(self._index * len(chosen_B), len(chosen_B), longest)
        whole = self._steps % longest == 0
        self._limit_B = np.where(chosen_B & (limit_B < longest) & (not whole), limit_B, 0)
        self._cuts = bool(self._limit_B.any())


def lengths(first: int, count: int, longest: int) -> NDArray[np.int64]:
    """int64 [count], from 1 to `longest`, for the copies `first`, `first` + 1, … of a job; evenly spread.

    Copy i has the fractional part of (i + 1) / golden ratio. Any consecutive members of this sequence are spread evenly
    (Knuth 1998, §6.4, theorem S), so that copies need not know how many lanes there are.
    """
    copy = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    fraction = copy * _GOLDEN >> _HALF  # modulo 2⁶⁴
    return (fraction * np.uint64(longest) >> _HALF).astype(np.int64) + 1
