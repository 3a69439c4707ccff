"""The arrays of the embedded engine: everything that later steps depend on."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.learning.envs.base import Arrays, BoolArray, FloatArray, saved
from marless_smac.draws import KeyArray
from marless_smac.tables import Tables


@dataclass(frozen=True)
class BattleState:
    """All units of B battles, allies first. Dead units lie in `Tables.grave`, far outside the map."""

    x: FloatArray
    """float32 [U, B], cells."""
    y: FloatArray
    health: FloatArray
    """0: dead."""
    shield: FloatArray
    cooldown: FloatArray
    """Loops until the weapon is ready."""
    energy: FloatArray
    quiet: FloatArray
    """Loops since the unit was last hurt."""
    goal_x: FloatArray
    goal_y: FloatArray
    target: NDArray[np.int16]
    """int16 [U, B]: id in the other team (of a medivac: in its own), −1: none."""
    marching: BoolArray
    """bool [U, B]: goes to its goal unless it has a target."""
    key: KeyArray
    """uint64 [B]: of the next random numbers."""

    @staticmethod
    def empty(units: int, batch: int) -> BattleState:
        """Arrays of this size."""
        target, marching = np.full((units, batch), -1, np.int16), np.zeros((units, batch), np.bool_)
        x, y, health, shield, cooldown, energy, quiet, goal_x, goal_y = np.zeros((9, units, batch), np.float32)
        key = np.zeros(batch, np.uint64)
        return BattleState(x, y, health, shield, cooldown, energy, quiet, goal_x, goal_y, target, marching, key)

    def columns(self, chosen: NDArray[np.intp]) -> BattleState:
        """Copies of these battles."""
        return BattleState(*(getattr(self, field.name)[..., chosen] for field in fields(self)))

    def put(self, chosen: NDArray[np.intp], other: BattleState) -> None:
        """Replace these battles."""
        for field in fields(self):
            getattr(self, field.name)[..., chosen] = getattr(other, field.name)

    def save(self) -> dict[str, NDArray[np.generic]]:
        """Copies of all arrays, by name."""
        return {field.name: getattr(self, field.name).copy() for field in fields(self)}

    def load(self, arrays: Arrays, tables: Tables, targets: NDArray[np.int16]) -> None:
        """Take over a save; raises CorruptError for arrays that are none, and then changes nothing."""
        found = {}
        for field in fields(self):
            own = getattr(self, field.name)
            found[field.name] = saved(arrays, field.name, own.dtype.name, own.shape)
        within = (
            ("health", tables.health),
            ("shield", tables.shield),
            ("energy", np.float32(200)),
            ("cooldown", tables.period + 10),
            ("quiet", np.float32(1e9)),
        )
        for name, most in within:
            if not ((found[name] >= 0) & (found[name] <= most)).all():
                raise CorruptError(f"saved environment: {name} holds numbers outside what units of this map can have")
        if not ((found["target"] >= -1) & (found["target"] < targets)).all():
            raise CorruptError("saved environment: target names units that this map does not have")
        for name in ("x", "y", "goal_x", "goal_y"):
            if not (np.abs(found[name]) < 1e5).all():
                raise CorruptError(f"saved environment: {name} is outside the map")
        for name, array in found.items():
            getattr(self, name)[...] = array
