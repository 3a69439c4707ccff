"""What a step pays and how a battle ends, from the units before and after it; SMAC's rules and numbers.

Shape suffixes: N allies, E enemies, B battles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marless.learning.envs.base import BoolArray, FloatArray
from marless_smac.kinds import Kind
from marless_smac.maps import SmacMap
from marless_smac.options import SmacOptions
from marless_smac.units import Units, UnitTeam, in_order


@dataclass(frozen=True)
class BattleOutcome:
    """What became of the battles in one step, all [B]."""

    reward: FloatArray
    """float32: the team's."""
    over: BoolArray
    """No unit of a team lives any more."""
    won: BoolArray
    lost: BoolArray
    """Neither won nor lost although over: both teams died in the same step."""


class Scorer:
    """Computes outcomes; holds health and shields from before the step."""

    def __init__(self, smac_map: SmacMap, options: SmacOptions, batch: int) -> None:
        self._options, self._medivacs = options, Kind.MEDIVAC in smac_map.ally_kinds
        enemies = len(smac_map.enemy_kinds)
        self.max_reward = options.reward_death_value * enemies + options.reward_win + smac_map.enemy_total
        self._scale = np.float32(options.reward_scale_rate / self.max_reward if options.reward_scale else 1.0)
        self._ally_points = np.zeros((len(smac_map.ally_kinds), batch), np.float32)
        self._enemy_points = np.zeros((enemies, batch), np.float32)

    def remember(self, units: Units) -> None:
        """Note health and shields; to be called before each step."""
        self._ally_points[...] = _points(units.allies)
        self._enemy_points[...] = _points(units.enemies)

    def score(self, units: Units) -> BattleOutcome:
        """The outcome of the step since `remember`."""
        won, lost, over = self._ends(units)
        options = self._options
        if options.reward_sparse:
            reward = won.astype(np.float32) - lost
        else:
            reward = self._paid(units)
            reward += np.float32(options.reward_win) * won + np.float32(options.reward_defeat) * lost
        return BattleOutcome(reward * self._scale, over, won, lost)

    def _paid(self, units: Units) -> FloatArray:
        options = self._options
        gain = _loss(self._enemy_points, units.enemies, options.reward_death_value)
        if options.reward_only_positive:
            return np.abs(gain)  # the shields of enemies recover, which pays too
        return gain - np.float32(options.reward_negative_scale) * _loss(
            self._ally_points, units.allies, options.reward_death_value
        )

    def _ends(self, units: Units) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Won, lost and over, each bool [B]."""
        allies, enemies = units.allies.alive, units.enemies.alive
        none_left, none_to_beat = ~np.any(allies, axis=0), ~np.any(enemies, axis=0)
        over = none_left | none_to_beat
        if not self._medivacs:
            return none_to_beat & ~none_left, none_left & ~none_to_beat, over
        # Asked first, as in SMAC: where both teams die at once, it is a defeat.
        lost = ~np.any(allies & (units.allies.kind != Kind.MEDIVAC), axis=0)
        healer_left = (np.count_nonzero(enemies, axis=0) == 1) & np.any(
            enemies & (units.enemies.kind == Kind.MEDIVAC), axis=0
        )
        won = (none_to_beat | healer_left) & ~lost
        return won, lost, won | lost


def _points(team: UnitTeam) -> FloatArray:
    points: FloatArray = np.where(team.alive, team.health + team.shield, np.float32(0))
    return points


def _loss(before: FloatArray, team: UnitTeam, death_value: float) -> FloatArray:
    """Health and shields lost in the step, and the value of each death, summed over the team: float32 [B]."""
    died = (before > 0) & ~team.alive
    lost: FloatArray = before - _points(team)
    lost += np.float32(death_value) * died
    return in_order(lost, axis=0)
