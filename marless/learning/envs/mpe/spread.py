"""`mpe/simple_spread`: agents cover landmarks together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.base import BoolArray
from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv
from marless.learning.envs.mpe.options import TeamOptions, check_flag, check_ratio
from marless.learning.envs.mpe.sight import Sight

COVERED = 0.1
"""Distance below which an agent covers a landmark."""


@dataclass(frozen=True, kw_only=True)
class SpreadOptions(TeamOptions):
    """Options of `simple_spread`."""

    agents: int = 3
    local_ratio: float = 0.5
    """Weight λ of an agent's own collisions in its reward; the team's share is 1 − λ."""
    curriculum: bool = False
    """True: collisions cost nothing, as in the first stage of mpe2's curriculum; false: its second, and last, stage."""
    terminate_on_success: bool = False
    """True: an episode terminates when every landmark has an agent nearer than 0.1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("local_ratio", self.local_ratio)
        check_flag("curriculum", self.curriculum)
        check_flag("terminate_on_success", self.terminate_on_success)


class SimpleSpread(ParticleEnv):
    """Cooperative: N agents cover landmarks together and avoid collisions with one another.

    Reward of agent i: (1 − λ)·G + λ·L_i with G = −Σ over landmarks of the nearest agent's distance and L_i
    = −(number of other agents nearer than 0.30). Observation: own velocity, own position, landmarks and
    then other agents (in order) relative to it, and 2·(N − 1) zeros in place of the others' messages, as no
    agent communicates in this game.
    """

    rewards = "cooperative"

    def __init__(self, options: SpreadOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        marks, others = options.places(options.marks, options.agents - 1)
        names = tuple(f"agent_{i}" for i in range(options.agents))
        role = AgentRole(name="agent", agents=names, obs_size=4 + 2 * marks + 4 * others, collides=True, size=0.15)
        super().__init__((role,), (Landmarks(count=options.marks),), options, batch, dtype)
        self._options = options
        self._to_mark_MB = np.zeros((options.marks, batch))
        (rows_NOB,) = self._role_rows()
        self._vel_rows, self._pos_rows = rows_NOB[:, :2], rows_NOB[:, 2:4]
        self._sight = Sight(rows_NOB, 4, slice(None), (options.marks, options.agents - 1), options)

    def _write_rows(self) -> None:
        self._vel_rows[...] = self._vel_N2B
        self._pos_rows[...] = self._agents_N2B
        self._sight.write(self._rel_NM2B)

    def _score(self) -> None:
        self._dist_NMB[:, : self._marks].min(axis=0, out=self._to_mark_MB)
        team_B = -self._to_mark_MB.sum(axis=0)
        if self._options.curriculum:
            self._rewards_NB.fill(0)
        else:
            self._collisions()
        self._rewards_NB += (1.0 - self._options.local_ratio) * team_B

    def _collisions(self) -> None:
        bumps_NMB = self._dist_NMB[:, self._marks :] < self._apart_NM1[:, self._marks :]
        np.add.reduce(bumps_NMB, axis=1, dtype=np.float64, out=self._rewards_NB)
        self._rewards_NB *= -self._options.local_ratio

    def _over(self) -> BoolArray:
        if not self._options.terminate_on_success:
            return super()._over()
        return np.logical_and.reduce(self._to_mark_MB < COVERED, axis=0, out=np.empty(self.batch, np.bool_))
