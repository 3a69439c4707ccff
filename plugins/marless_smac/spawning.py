"""Creates the units of new battles: at random places around their points, pushed apart until they do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marless.learning.envs.base import FloatArray
from marless_smac import draws
from marless_smac.kinds import Kind
from marless_smac.maps import Point, SmacMap
from marless_smac.maps import Team as Composition
from marless_smac.moving import Mover
from marless_smac.rules import Rules
from marless_smac.state import BattleState
from marless_smac.tables import Tables

_PUSHES = 16
_ENERGY = 50.0
"""Of a new medivac."""


class Spawner:
    """Creates the units of one map."""

    def __init__(self, smac_map: SmacMap, tables: Tables, mover: Mover, rules: Rules) -> None:
        self._map, self._tables, self._mover, self._rules = smac_map, tables, mover, rules
        self._allies = len(smac_map.ally_kinds)
        starts = _points(smac_map.allies, smac_map.ally_starts, smac_map.ally_kinds)
        starts += _points(smac_map.enemies, smac_map.enemy_starts, smac_map.enemy_kinds)
        self._start_2U1 = np.array(starts, np.float32).T[:, :, None]

    def spawned(self, key_B: draws.KeyArray) -> BattleState:
        """New battles, one per key."""
        units, batch = self._start_2U1.shape[1], len(key_B)
        state = BattleState.empty(units, batch)
        state.key[...] = key_B
        lots = draws.uniform(key_B, 2 * units + 1)
        away = np.float32(2 * self._rules.scatter) * (lots[: 2 * units] - np.float32(0.5))
        place_2UB = self._start_2U1 + away.reshape(2, units, batch)
        state.x[...], state.y[...] = place_2UB
        state.health[...], state.shield[...] = self._tables.health, self._tables.shield
        for _ in range(_PUSHES):
            self._mover.spread(state)
        self._sort(state)
        state.energy[self._tables.kind == Kind.MEDIVAC] = _ENERGY
        self._send(state, lots[-1])
        return state

    def _sort(self, state: BattleState) -> None:
        """Ids of allies of one kind ascend with x, then y."""
        kinds = self._tables.kind[: self._allies]
        for kind in np.unique(kinds):
            who = np.flatnonzero(kinds == kind)
            order = np.lexsort((state.y[who], state.x[who]), axis=0)
            for array in (state.x, state.y):
                array[who] = np.take_along_axis(array[who], order, axis=0)

    def _send(self, state: BattleState, lot_B: FloatArray) -> None:
        """Give enemies the one order that the map gives them."""
        goal, enemies = self._map.enemy_goal, slice(self._allies, None)
        if goal is None:
            return
        state.goal_x[enemies], state.goal_y[enemies] = goal
        if self._map.goal_between:
            (left, y), (right, _) = self._map.ally_starts
            state.goal_x[enemies] = np.float32(left) + lot_B * np.float32(right - left)
            state.goal_y[enemies] = y
        state.marching[enemies] = True


def _points(team: Composition, starts: Sequence[Point], kinds: Sequence[Kind]) -> list[Point]:
    """The start point of each unit, by id."""
    if len(starts) == 1:
        return [starts[0]] * len(kinds)
    if len(starts) == len(kinds):
        return list(starts)
    of_kind = {kind: start for (kind, _), start in zip(team, starts, strict=True)}
    return [of_kind[kind] for kind in kinds]
