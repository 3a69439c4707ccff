"""Units as arrays, which both backends fill: the embedded engine, and the client of the real game.

Observations, states, masks and rewards are computed from these arrays and nothing else, so the backends cannot drift
apart. Shape suffixes: N allies, E enemies, U units of either team, B battles. Battles come last, so that array
operations run over contiguous numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray, FloatArray

KindArray = NDArray[np.int8]
IntArray = NDArray[np.int32]


@dataclass(frozen=True)
class UnitTeam:
    """The units of one team, by id; a dead unit has health 0, and its other numbers mean nothing."""

    kind: KindArray
    """int8 [U, B] of `Kind`."""
    x: FloatArray
    """float32 [U, B], cells."""
    y: FloatArray
    """float32 [U, B], cells."""
    health: FloatArray
    """float32 [U, B]; 0: dead."""
    shield: FloatArray
    """float32 [U, B]."""
    cooldown: FloatArray
    """float32 [U, B], loops until the weapon is ready; 0 or more."""
    energy: FloatArray
    """float32 [U, B], of medivacs."""
    health_max: FloatArray
    """float32 [U, B]; above 0, for dead units too."""

    @property
    def alive(self) -> BoolArray:
        """bool [U, B]."""
        return self.health > 0

    def first(self) -> UnitTeam:
        """Copies of the arrays of the first battle, [U, 1]."""
        return UnitTeam(*(getattr(self, field.name)[:, :1].copy() for field in fields(self)))


@dataclass(frozen=True)
class Units:
    """Both teams of B battles as they are now. The arrays are the backend's own and change with its next call."""

    allies: UnitTeam
    enemies: UnitTeam


class Battles(Protocol):
    """B battles on one map: what the environment needs of a backend."""

    batch: int
    units: Units
    walkable: BoolArray
    """bool [32, 32], by x and y: units can stand in this cell."""

    def reset(self, seed: int) -> None:
        """Begin a battle in every copy; all randomness until the next reset comes from `seed`, as far as it can."""
        ...

    def start(self, fresh_B: BoolArray) -> None:
        """Begin new battles in these copies: all units created, sorted, and none of them has acted."""
        ...

    def advance(self, action_NB: IntArray) -> BoolArray:
        """Give each living ally its order, which is legal, and let 8 game loops pass.

        Returns bool [B]: a fault of the game ended the battle, whose units are still those of before; it must be
        started again. The embedded engine has no faults.
        """
        ...

    def close(self) -> None:
        """Release what the backend holds; calling it twice is safe."""
        ...


def in_order(array: FloatArray, axis: int) -> FloatArray:
    """The sum along an axis that is not the last, added up one by one from the first.

    NumPy's own sum adds in another order if there is only one battle, and rounding would depend on the batch.
    """
    total: FloatArray = np.add.accumulate(array, axis=axis).take(-1, axis=axis)
    return total
