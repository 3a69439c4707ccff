"""The embedded engine: B battles of one map, eight game loops a step, as array operations over all battles.

In each loop the opponents choose targets, every unit in reach of its target and ready fires, units move and push each
other apart, and shields recover. Allies do what they are told and nothing else. `marless_smac.rules` has
what no file of the game states.

Shape suffixes: N allies, E enemies, U units (allies first), B battles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import Arrays, BoolArray, FloatArray
from marless_smac import draws
from marless_smac.fighting import Aim, TargetView, aim, bursts, choose, harm, strikes
from marless_smac.ground import Ground
from marless_smac.kinds import LOOPS, LOOPS_PER_SECOND
from marless_smac.maps import FIXED_ACTIONS, SmacMap
from marless_smac.moving import Mover
from marless_smac.picturing import Line
from marless_smac.rules import Rules
from marless_smac.spawning import Spawner
from marless_smac.state import BattleState
from marless_smac.tables import Weapons, tables, weapons
from marless_smac.units import IntArray, Units, UnitTeam

_MOVE_X = np.array([0, 0, 0, 0, 2, -2], np.float32)
_MOVE_Y = np.array([0, 0, 2, -2, 0, 0], np.float32)
_SHIELD_DELAY = np.float32(10 * LOOPS_PER_SECOND)
_SHIELD_GAIN = np.float32(2 / LOOPS_PER_SECOND)
_ENERGY_GAIN = np.float32(0.5625 / LOOPS_PER_SECOND)
_ENERGY_MAX = np.float32(200)


Scene = tuple[Units, list[Line]]
"""The units of one battle, and lines from attackers to targets."""


class EmbeddedBattles:
    """See `marless_smac.units.Battles`."""

    def __init__(self, smac_map: SmacMap, batch: int, rules: Rules | None = None) -> None:
        self.map, self.batch, self.rules = smac_map, batch, rules or Rules()
        self._tables = tables(smac_map, self.rules)
        ours, theirs = smac_map.ally_kinds, smac_map.enemy_kinds
        self._allies, units = len(ours), len(ours) + len(theirs)
        self._teams = slice(0, len(ours)), slice(len(ours), units)
        self._sides = weapons(ours, theirs), weapons(theirs, ours)
        ground = Ground(smac_map.name, self._tables)
        self.walkable = ground.walkable
        self._mover = Mover(self._tables, ground, self.rules)
        self._spawner = Spawner(smac_map, self._tables, self._mover, self.rules)
        self._state = BattleState.empty(units, batch)
        self._no_fault_B = np.zeros(batch, np.bool_)
        self.units = Units(*(self._team(team) for team in self._teams))

    def reset(self, seed: int) -> None:
        self._state.key[...] = draws.keys_of(seed, self.batch)
        self.start(np.ones(self.batch, np.bool_))

    def start(self, fresh_B: BoolArray) -> None:
        fresh = np.flatnonzero(fresh_B)
        self._state.put(fresh, self._spawner.spawned(draws.next_keys(self._state.key[fresh])))

    def advance(self, action_NB: IntArray) -> BoolArray:
        state, low, high = self._state, *self.rules.jitter
        state.key[...] = draws.next_keys(state.key)
        lots_UB = draws.uniform(state.key, state.x.shape[0])  # one is enough: no weapon fires twice in eight loops
        period_UB = self._tables.period + np.floor(np.float32(low) + lots_UB * np.float32(high - low + 1))
        self._order(action_NB)
        for _ in range(LOOPS):
            self._loop(np.maximum(period_UB, 0))
        return self._no_fault_B

    def save(self) -> dict[str, NDArray[np.generic]]:
        """Copies of everything that later steps depend on."""
        return self._state.save()

    def load(self, arrays: Arrays) -> None:
        """Continue from a save of the same map and batch; raises CorruptError for arrays that are none."""
        units, allies = self._state.x.shape[0], self._allies
        # Targets are units of the other team, but for those of medivacs, which heal their own.
        most = np.where(np.arange(units) < allies, units - allies, allies)
        for side, start in zip(self._sides, (0, allies), strict=True):
            if side.healer is not None:
                most[start + side.healer] = units - most[start + side.healer]
        self._state.load(arrays, self._tables, most[:, None].astype(np.int16))

    def scene(self) -> Scene:
        """Copies of the units of the first battle, and from where to where they attacked in this step."""
        state, n = self._state, self._allies
        attacks: list[Line] = []
        fired = (state.cooldown[:, 0] > self._tables.period[:, 0] - LOOPS) & (state.cooldown[:, 0] > 0)
        for unit in np.flatnonzero(fired & (state.target[:, 0] >= 0) & (state.health[:, 0] > 0)).tolist():
            other = int(state.target[unit, 0]) + (n if unit < n else 0)
            x, y = state.x[:, 0].tolist(), state.y[:, 0].tolist()
            attacks.append((x[unit], y[unit], x[other], y[other]))
        return Units(self.units.allies.first(), self.units.enemies.first()), attacks

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _order(self, action_NB: IntArray) -> None:
        state, n = self._state, self._allies
        state.target[:n] = np.where(action_NB >= FIXED_ACTIONS, action_NB - FIXED_ACTIONS, -1)
        move_NB = np.where(action_NB < FIXED_ACTIONS, action_NB, 0)
        state.goal_x[:n] = state.x[:n] + _MOVE_X[move_NB]
        state.goal_y[:n] = state.y[:n] + _MOVE_Y[move_NB]
        state.marching[:n] = move_NB > 1

    def _loop(self, period_UB: FloatArray) -> None:
        state, n = self._state, self._allies
        view = self._view()
        back = view.turned()
        choose(back, self._sides[1], state.target[n:], self._tables.reach[n:], self.rules, self.map.hunts)
        aims = aim(view, self._sides[0], state.target[:n]), aim(back, self._sides[1], state.target[n:])
        self._heal(aims)
        aimed = aims[0].joined(aims[1])
        reached_UB = aimed.aims & (aimed.gap <= self._tables.reach)
        fires_UB = reached_UB & (state.cooldown <= 0) & self._tables.armed & (state.health > 0)
        spent_UB = self._fight((view, back), aims, fires_UB)
        np.copyto(state.cooldown, period_UB, where=spent_UB & (state.health > 0))
        np.maximum(state.cooldown - 1, 0, out=state.cooldown)
        self._mover.move(state, aimed, reached_UB)
        self._recover()

    def _view(self) -> TargetView:
        state, n = self._state, self._allies
        dx, dy = state.x[n:] - state.x[:n, None], state.y[n:] - state.y[:n, None]
        return TargetView(dx, dy, np.sqrt(dx * dx + dy * dy))

    def _fight(self, views: tuple[TargetView, TargetView], aims: tuple[Aim, Aim], fires_UB: BoolArray) -> BoolArray:
        """All hits land at the same time; then the dead are removed. Returns bool [U, B]: has used its weapon."""
        state, raws, late = self._state, [], []
        for view, side, team, aimed in zip(views, self._sides, self._teams, aims, strict=True):
            raws.append(strikes(view, side, state.target[team], fires_UB[team], aimed, self.rules))
        for raw, side, team in zip(raws, self._sides, reversed(self._teams), strict=True):
            late.append(self._hurt(raw, side, team))
        spent_UB = fires_UB & ~(np.concatenate(late) & self._tables.holds_fire)
        blown = [team.start + side.banelings for team, side in zip(self._teams, self._sides, strict=True)]
        for which in blown:
            state.health[which] *= ~fires_UB[which]
        self._burst(views, [fires_UB[which] for which in blown])
        self._bury()
        return spent_UB

    def _hurt(self, raw: FloatArray, side: Weapons, team: slice) -> BoolArray:
        """Apply hits on a team; returns bool [attackers, B]: came too late."""
        state = self._state
        harmed = harm(raw, side, state.shield[team], state.health[team], self.rules.least_harm)
        state.shield[team] -= harmed.shield
        state.health[team] = np.maximum(state.health[team] - harmed.health, 0)
        state.quiet[team] *= (harmed.shield + harmed.health) <= 0
        return harmed.late

    def _burst(self, views: tuple[TargetView, TargetView], gone: list[BoolArray]) -> None:
        """Let banelings that died go off, and those whom they kill."""
        pairs = list(zip(views, self._sides, self._teams, reversed(self._teams), strict=True))
        again = any(side.banelings.size for side in self._sides)
        while again:
            again = False
            for k, (view, side, own, other) in enumerate(pairs):
                state = self._state
                lies_buried = state.x[own][side.banelings] >= self._tables.grave[0]
                goes_off = (state.health[own][side.banelings] <= 0) & ~gone[k] & ~lies_buried
                if goes_off.any():
                    hit = bursts(view, goes_off, side, self.rules)
                    raw = np.zeros(view.dist.shape, np.float32)
                    raw[side.banelings] = hit * side.damage[side.banelings]
                    self._hurt(raw, side, other)
                    gone[k] = gone[k] | goes_off
                    again = True

    def _bury(self) -> None:
        """Remove units that died in this loop, and the orders to attack them."""
        state = self._state
        died_UB = (state.health <= 0) & (state.x < self._tables.grave[0])
        if not died_UB.any():
            return
        np.copyto(state.x, self._tables.grave, where=died_UB)
        for array, value in ((state.y, 0), (state.shield, 0), (state.cooldown, 0), (state.energy, 0), (state.quiet, 0)):
            np.copyto(array, np.float32(value), where=died_UB)
        np.copyto(state.target, np.int16(-1), where=died_UB)
        np.copyto(state.marching, False, where=died_UB)
        for side, own, other in zip(self._sides, self._teams, reversed(self._teams), strict=True):
            target = state.target[own]
            lives = _lives(target, state.health[other])
            if side.healer is not None:
                lives[side.healer] = _lives(target[side.healer][None], state.health[own])[0]
            np.copyto(target, np.int16(-1), where=~lives)

    def _heal(self, aims: tuple[Aim, Aim]) -> None:
        """Let medivacs heal, and replace their aims, which are units of their own team."""
        for side, aimed, start, own in zip(self._sides, aims, (0, self._allies), (True, False), strict=True):
            if side.healer is not None:
                self._heal_one(start, side.healer, aimed, chooses=not own)

    def _heal_one(self, start: int, healer: int, aimed: Aim, *, chooses: bool) -> None:
        state, tables = self._state, self._tables
        team = slice(start, start + len(aimed.aims))
        me = start + healer
        dx, dy = state.x[team] - state.x[me], state.y[team] - state.y[me]
        dist = np.sqrt(dx * dx + dy * dy)
        missing = (tables.health[team] - state.health[team]) * tables.biological[team][:, None]
        missing *= state.health[team] > 0
        if chooses:
            rank = np.where(missing > 0, dist, np.float32(1e6))
            best, sight = rank.argmin(axis=0), np.float32(self.rules.scan) + tables.radius[me]
            found = np.take_along_axis(rank, best[None], axis=0)[0] <= sight
            state.target[me] = np.where(found & (state.health[me] > 0), best, -1)
        at = np.maximum(state.target[me], 0)[None].astype(np.intp)
        picked = [np.take_along_axis(each, at, axis=0)[0] for each in (dx, dy, dist, missing)]
        contact = tables.radius[me] + tables.radius[team][at[0], 0]
        aimed.aims[healer], aimed.dx[healer], aimed.dy[healer] = state.target[me] >= 0, picked[0], picked[1]
        aimed.dist[healer], aimed.gap[healer] = picked[2], picked[2] - contact
        works = aimed.aims[healer] & (aimed.gap[healer] <= tables.reach[me])
        most = np.minimum(np.float32(self.rules.heal / LOOPS_PER_SECOND), picked[3])
        given = np.minimum(most, state.energy[me] * np.float32(self.rules.heal_per_energy)) * works
        state.energy[me] -= given / np.float32(self.rules.heal_per_energy)
        healed = np.take_along_axis(state.health[team], at, axis=0)[0] + given
        np.put_along_axis(state.health[team], at, healed[None], axis=0)

    def _recover(self) -> None:
        state, tables = self._state, self._tables
        if tables.shield.any():
            rests = (state.quiet >= _SHIELD_DELAY) & (state.health > 0)
            np.minimum(state.shield + _SHIELD_GAIN * rests, tables.shield, out=state.shield)
        if tables.regrowth.any():
            grown = state.health + tables.regrowth * (state.health > 0)
            np.minimum(grown, tables.health, out=state.health)
        for side, start in zip(self._sides, (0, self._allies), strict=True):
            if side.healer is not None:
                me = start + side.healer
                gain = _ENERGY_GAIN * (state.health[me] > 0)
                state.energy[me] = np.minimum(state.energy[me] + gain, _ENERGY_MAX)
        np.add(state.quiet, 1, out=state.quiet)

    def _team(self, units: slice) -> UnitTeam:
        state, tables = self._state, self._tables
        shape = state.x[units].shape
        return UnitTeam(
            kind=np.broadcast_to(tables.kind[units][:, None], shape),
            x=state.x[units],
            y=state.y[units],
            health=state.health[units],
            shield=state.shield[units],
            cooldown=state.cooldown[units],
            energy=state.energy[units],
            health_max=np.broadcast_to(tables.health[units], shape),
        )


def _lives(target: NDArray[np.int16], health: FloatArray) -> BoolArray:
    """The unit of each target lives."""
    at = np.clip(target, 0, len(health) - 1).astype(np.intp)
    return np.take_along_axis(health, at, axis=0) > 0
