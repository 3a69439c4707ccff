"""The environments `smac/<map>`: SMAC's battles over the embedded engine, which can be saved."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.learning.envs.base import Arrays, BoolArray, Frame, saved
from marless_smac.engine import EmbeddedBattles, Scene
from marless_smac.env import SmacEnv
from marless_smac.maps import SmacMap
from marless_smac.observing import NO_ACTION
from marless_smac.options import SmacOptions
from marless_smac.picturing import drawn
from marless_smac.rules import Rules


class EmbeddedSmac(SmacEnv):
    """B battles that the embedded engine fights."""

    fresh_only = ""

    def __init__(self, smac_map: SmacMap, options: SmacOptions, batch: int, rules: Rules | None = None) -> None:
        self._engine = EmbeddedBattles(smac_map, batch, rules)
        self._last_scene: Scene | None = None
        super().__init__(smac_map, options, self._engine)

    def save(self) -> Arrays:
        return {
            **self._engine.save(),
            "steps": self._steps_B.copy(),
            "last_action": self._last_action_NB.copy(),
        }

    def load(self, arrays: Arrays) -> Frame:
        steps_B = saved(arrays, "steps", "int64", self._steps_B.shape)
        last_NB = saved(arrays, "last_action", "int32", self._last_action_NB.shape)
        if not ((steps_B >= 0) & (steps_B < self.map.limit)).all():
            raise CorruptError(f"saved environment: steps holds numbers outside 0 to {self.map.limit - 1}")
        if not ((last_NB >= NO_ACTION) & (last_NB < self.map.n_actions)).all():
            raise CorruptError("saved environment: last_action holds actions that this map does not have")
        self._engine.load(arrays)
        self._steps_B[...], self._last_action_NB[...] = steps_B, last_NB
        self._cut_B[:] = np.False_
        self._write()
        return self._frame

    def picture(self, *, ended: bool = False) -> NDArray[np.uint8]:
        units, attacks = self._last_scene if ended and self._last_scene else self._engine.scene()
        return drawn(units, self._engine.walkable, attacks)

    def _ending(self, ended_B: BoolArray) -> None:
        if ended_B[0]:
            self._last_scene = self._engine.scene()
