"""Turns units into observations, states and masks of legal actions, with SMAC's layouts.

Shape suffixes: N agents, M = N − 1 other agents, E enemies, T type bits, F numbers about one unit, O observation,
S state, A actions, B battles. Rows are written feature-major with the battles last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray, Entities, FloatArray, Frame
from marless_smac.kinds import FACTS, Kind
from marless_smac.maps import FIXED_ACTIONS, SIZE, SmacMap
from marless_smac.options import SmacOptions
from marless_smac.units import IntArray, Units, UnitTeam

MOVES = 4
SIGHT = np.float32(9)
"""Units closer than this are seen, whatever their kind."""
SHOOT = np.float32(6)
"""Targets up to this distance may be attacked, whatever the weapon: the order walks the unit in."""
STEP = 1.0
"""A move is legal if the cell that lies this far ahead is walkable."""
NO_OP, STOP, NORTH, SOUTH, EAST, WEST = range(FIXED_ACTIONS)
NO_ACTION = -1
"""The last action before the first step."""
AROUND = ((0, 4), (0, -4), (4, 0), (-4, 0), (2, 2), (-2, -2), (2, -2), (-2, 2))
"""The cells of `obs_pathing_grid`, relative to the agent's own."""

SHIELD_MAX = np.array([FACTS[kind].shield for kind in Kind], np.float32)
COOLDOWN_SCALE = np.array([FACTS[kind].cooldown_scale for kind in Kind], np.float32)


@dataclass(frozen=True)
class Rows:
    """What is written about a moment."""

    obs: FloatArray
    """float32 [N, O, B]."""
    state: FloatArray
    """float32 [S, B]."""
    mask: BoolArray
    """bool [N, A, B]: the action is legal."""

    def frame(self) -> Frame:
        """The same arrays as the frame of the one agent class."""
        obs_NBO, mask_NBA = self.obs.transpose(0, 2, 1), self.mask.transpose(0, 2, 1)
        return Frame(obs=(obs_NBO,), state=self.state.T, masks=(mask_NBA,))

    def copy_to(self, other: Rows) -> None:
        """Write the same numbers to other rows."""
        np.copyto(other.obs, self.obs)
        np.copyto(other.state, self.state)
        np.copyto(other.mask, self.mask)


class Observer:
    """Writes rows about the battles of one map."""

    def __init__(self, smac_map: SmacMap, options: SmacOptions) -> None:
        self._map, self._options = smac_map, options
        self.agents, self.enemies = len(smac_map.ally_kinds), len(smac_map.enemy_kinds)
        self.n_actions, self._types = smac_map.n_actions, len(smac_map.types)
        health, actions = options.obs_all_health, self.n_actions if options.obs_last_action else 0
        self._enemy_size = 4 + self._types + (1 + smac_map.enemy_shields) * health
        self._ally_size = 4 + self._types + (1 + smac_map.ally_shields) * health + actions
        self._own_size = self._types + (1 + smac_map.ally_shields) * options.obs_own_health
        self._enemies_at = MOVES + len(AROUND) * options.obs_pathing_grid
        self._allies_at = self._enemies_at + self.enemies * self._enemy_size
        self._own_at = self._allies_at + (self.agents - 1) * self._ally_size
        self.obs_size = self._own_at + self._own_size + options.obs_timestep_number
        self._in_state = 4 + smac_map.ally_shields + self._types, 3 + smac_map.enemy_shields + self._types
        self._others_NM = np.array([[j for j in range(self.agents) if j != i] for i in range(self.agents)], np.intp)
        self._ally_type, self._enemy_type = _places(smac_map.types), _places(smac_map.enemy_types)

    @property
    def entities(self) -> tuple[Entities, ...]:
        """Where rows of observations describe enemies and allies; those out of sight or dead are zeros."""
        enemies = Entities(self._enemies_at, self.enemies, self._enemy_size)
        allies = Entities(self._allies_at, self.agents - 1, self._ally_size)
        return (enemies, allies) if allies.count else (enemies,)

    @property
    def state_size(self) -> int:
        """Length of the global state."""
        if self._options.obs_instead_of_state:
            return self.agents * self.obs_size
        units = self.agents * self._in_state[0] + self.enemies * self._in_state[1]
        actions = self.agents * self.n_actions * self._options.state_last_action
        return units + actions + self._options.state_timestep_number

    def rows(self, batch: int) -> Rows:
        """Rows for this many battles."""
        return Rows(
            np.zeros((self.agents, self.obs_size, batch), np.float32),
            np.zeros((self.state_size, batch), np.float32),
            np.zeros((self.agents, self.n_actions, batch), np.bool_),
        )

    def write(
        self, rows: Rows, units: Units, walkable_XY: BoolArray, last_action_NB: IntArray, steps_B: NDArray[np.int64]
    ) -> None:
        """Write all rows: `last_action_NB` may be `NO_ACTION`, `steps_B` are env steps since the battles began."""
        over_B = (steps_B / self._map.limit).astype(np.float32)
        enemies, allies = self._sight(units.allies, units.enemies), self._sight(units.allies, units.allies)
        self._write_masks(rows.mask, units, walkable_XY, enemies, allies)
        rows.obs[:, :MOVES] = rows.mask[:, NORTH : NORTH + MOVES]
        if self._options.obs_pathing_grid:
            rows.obs[:, MOVES : self._enemies_at] = _around(units.allies, walkable_XY)
        self._write_enemies(rows, units.enemies, enemies)
        self._write_allies(rows.obs, units.allies, allies, last_action_NB)
        self._write_own(rows.obs, units.allies, over_B)
        if self._options.obs_instead_of_state:
            rows.state[...] = rows.obs.reshape(rows.state.shape)
        else:
            self._write_state(rows.state, units, last_action_NB, over_B)

    def _sight(self, viewers: UnitTeam, others: UnitTeam) -> _Sight:
        dx, dy = others.x - viewers.x[:, None], others.y - viewers.y[:, None]
        dist = np.sqrt(dx * dx + dy * dy)
        both = viewers.alive[:, None] & others.alive
        return _Sight(dx, dy, dist, both, (dist < SIGHT) & both)

    def _write_masks(
        self, mask_NAB: BoolArray, units: Units, walkable_XY: BoolArray, enemies: _Sight, allies: _Sight
    ) -> None:
        x, y, alive = units.allies.x, units.allies.y, units.allies.alive
        # A border of cells that are not walkable, for points outside of the map.
        padded = np.pad(walkable_XY, 1)
        mask_NAB[:, NO_OP], mask_NAB[:, STOP] = ~alive, alive
        for action, dx, dy in ((NORTH, 0, STEP), (SOUTH, 0, -STEP), (EAST, STEP, 0), (WEST, -STEP, 0)):
            mask_NAB[:, action] = padded[_cell(x + np.float32(dx)) + 1, _cell(y + np.float32(dy)) + 1] & alive
        np.logical_and(enemies.dist <= SHOOT, enemies.both, out=mask_NAB[:, FIXED_ACTIONS:])
        if Kind.MEDIVAC in self._map.ally_kinds:
            medivac = units.allies.kind == Kind.MEDIVAC
            # As in SMAC: medivacs heal no medivacs, and attack nobody: their slots for enemies stand for allies.
            heal = (allies.dist <= SHOOT) & allies.both & ~medivac
            mask_NAB[:, FIXED_ACTIONS:] &= ~medivac[:, None]
            mask_NAB[:, FIXED_ACTIONS : FIXED_ACTIONS + self.agents] |= heal & medivac[:, None]

    def _write_enemies(self, rows: Rows, enemies: UnitTeam, sight: _Sight) -> None:
        shape = (self.agents, self.enemies, self._enemy_size, rows.obs.shape[-1])
        block = rows.obs[:, self._enemies_at : self._allies_at].reshape(shape)
        np.logical_and(rows.mask[:, FIXED_ACTIONS:], sight.seen, out=block[:, :, 0], casting="unsafe")
        self._write_unit(block, enemies, sight, self._map.enemy_shields, self._enemy_type)

    def _write_allies(self, obs_NOB: FloatArray, allies: UnitTeam, sight: _Sight, last_action_NB: IntArray) -> None:
        if self.agents == 1:
            return
        shape = (self.agents, self.agents - 1, self._ally_size, obs_NOB.shape[-1])
        block, others = obs_NOB[:, self._allies_at : self._own_at].reshape(shape), self._others_NM
        each = np.arange(self.agents)[:, None], others
        near = _Sight(sight.dx[each], sight.dy[each], sight.dist[each], sight.both[each], sight.seen[each])
        block[:, :, 0] = near.seen
        self._write_unit(block, _picked(allies, others), near, self._map.ally_shields, self._ally_type)
        if self._options.obs_last_action:
            chosen = _one_hot(last_action_NB[others], self.n_actions)
            block[:, :, -self.n_actions :] = chosen & near.seen[:, :, None]

    def _write_unit(
        self, block: FloatArray, team: UnitTeam, sight: _Sight, shields: bool, places: NDArray[np.int8]
    ) -> None:
        """Write the numbers of a unit from its distance on; units not seen become zeros."""
        nearness = sight.seen / SIGHT
        for at, part in enumerate((sight.dist, sight.dx, sight.dy), 1):
            np.multiply(part, nearness, out=block[:, :, at])
        at = 4
        if self._options.obs_all_health:
            np.multiply(team.health / team.health_max, sight.seen, out=block[:, :, at])
            at += 1
            if shields:
                np.multiply(team.shield / SHIELD_MAX[team.kind], sight.seen, out=block[:, :, at])
                at += 1
        if self._types:
            bits = _one_hot(places[team.kind], self._types)
            block[:, :, at : at + self._types] = bits & sight.seen[:, :, None]

    def _write_own(self, obs_NOB: FloatArray, allies: UnitTeam, over_B: FloatArray) -> None:
        at = self._own_at
        if self._options.obs_own_health:
            obs_NOB[:, at] = allies.health / allies.health_max
            at += 1
            if self._map.ally_shields:
                obs_NOB[:, at] = allies.shield / SHIELD_MAX[allies.kind] * allies.alive
                at += 1
        if self._types:
            bits = _one_hot(self._ally_type[allies.kind], self._types)
            obs_NOB[:, at : at + self._types] = bits & allies.alive[:, None]
        if self._options.obs_timestep_number:
            obs_NOB[:, -1] = over_B * allies.alive

    def _write_state(self, state_SB: FloatArray, units: Units, last_action_NB: IntArray, over_B: FloatArray) -> None:
        allies, batch = units.allies, state_SB.shape[-1]
        (ally_size, enemy_size), enemies_at = self._in_state, self.agents * self._in_state[0]
        actions_at = enemies_at + self.enemies * enemy_size
        block = state_SB[:enemies_at].reshape(self.agents, ally_size, batch)
        loaded = np.where(allies.kind == Kind.MEDIVAC, allies.energy, allies.cooldown)
        block[:, 1] = loaded / COOLDOWN_SCALE[allies.kind] * allies.alive
        self._write_standing(block, 2, allies, self._map.ally_shields, self._ally_type)
        block = state_SB[enemies_at:actions_at].reshape(self.enemies, enemy_size, batch)
        self._write_standing(block, 1, units.enemies, self._map.enemy_shields, self._enemy_type)
        if self._options.state_last_action:
            block = state_SB[actions_at : actions_at + self.agents * self.n_actions]
            block[...] = _one_hot(last_action_NB, self.n_actions).reshape(block.shape)
        if self._options.state_timestep_number:
            state_SB[-1] = over_B

    def _write_standing(
        self, block: FloatArray, at: int, team: UnitTeam, shields: bool, places: NDArray[np.int8]
    ) -> None:
        """Write health, then from `at` on the place on the map, the shield and the type of each unit."""
        # In the state the place stands between health and shield, in observations before
        # both: they cannot share a writer.
        block[:, 0] = team.health / team.health_max
        half = np.float32(SIZE / 2)
        block[:, at] = (team.x - half) / np.float32(SIZE) * team.alive
        block[:, at + 1] = (team.y - half) / np.float32(SIZE) * team.alive
        if shields:
            block[:, at + 2] = team.shield / SHIELD_MAX[team.kind] * team.alive
        if self._types:
            block[:, at + 2 + shields :] = _one_hot(places[team.kind], self._types) & team.alive[:, None]


@dataclass(frozen=True)
class _Sight:
    """Each viewer's view of each other unit, [viewers, others, B]."""

    dx: FloatArray
    dy: FloatArray
    dist: FloatArray
    both: BoolArray
    """Both are alive."""
    seen: BoolArray


def _picked(team: UnitTeam, others_NM: NDArray[np.intp]) -> UnitTeam:
    """Arrays [N, M, B] of the others of each unit."""
    x = team.x  # places are in the sight already
    parts = (team.health[others_NM], team.shield[others_NM])
    return UnitTeam(team.kind[others_NM], x, x, *parts, x, x, team.health_max[others_NM])


def _places(types: tuple[Kind, ...]) -> NDArray[np.int8]:
    """The type bit of each kind, −1 for kinds that have none."""
    return np.array([types.index(kind) if kind in types else -1 for kind in Kind], np.int8)


def _one_hot(number: NDArray[np.integer], size: int) -> BoolArray:
    """Bits [..., size, B] of numbers [..., B]; a negative number has none."""
    bits: BoolArray = number[..., None, :] == np.arange(size, dtype=number.dtype)[:, None]
    return bits


def _cell(place: FloatArray) -> NDArray[np.intp]:
    """The cell of a coordinate as SMAC computes it, towards 0; −1 or 32 if it is outside the map."""
    return np.clip(place.astype(np.intp), -1, SIZE)


def _around(team: UnitTeam, walkable_XY: BoolArray) -> BoolArray:
    """bool [N, 8, B] of `obs_pathing_grid`: cells outside the map count as walkable."""
    padded = np.pad(walkable_XY, 1, constant_values=True)
    x, y = team.x.astype(np.intp), team.y.astype(np.intp)
    cells = [padded[np.clip(x + dx, -1, SIZE) + 1, np.clip(y + dy, -1, SIZE) + 1] for dx, dy in AROUND]
    return np.stack(cells, axis=1) & team.alive[:, None]
