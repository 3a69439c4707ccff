"""`mpe/simple_spread`: agents cover landmarks together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.envs.mpe.engine import Landmarks, ParticleEnv, Role, planes
from marless.envs.mpe.options import TeamOptions, check_ratio


@dataclass(frozen=True, kw_only=True)
class SpreadOptions(TeamOptions):
    """Options of `simple_spread`."""

    agents: int = 3
    local_ratio: float = 0.5
    """Weight λ of an agent's own collisions in its reward; the team's share is 1 − λ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("local_ratio", self.local_ratio)


class SimpleSpread(ParticleEnv):
    """Cooperative: N agents cover landmarks together and avoid collisions with one another.

    Reward of agent i: (1 − λ)·G + λ·L_i with G = −Σ over landmarks of the nearest agent's distance and L_i
    = −(number of other agents nearer than 0.30). Observation: own velocity, own position, landmarks and
    then other agents (in order) relative to it, and 2·(N − 1) zeros in place of the others' messages, as no
    agent communicates in this game.
    """

    rewards = "cooperative"

    def __init__(self, options: SpreadOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        n, marks = options.agents, options.marks
        names = tuple(f"agent_{i}" for i in range(n))
        role = Role(name="agent", agents=names, obs_size=4 + 2 * marks + 4 * (n - 1), collides=True, size=0.15)
        super().__init__((role,), (Landmarks(count=marks),), options, batch, dtype)
        self._local_ratio = options.local_ratio
        (rows_NOB,) = self._role_rows()
        self._vel_rows, self._pos_rows = rows_NOB[:, :2], rows_NOB[:, 2:4]
        self._rel_rows = planes(rows_NOB, 4, marks + n - 1)

    def _write_rows(self) -> None:
        self._vel_rows[...] = self._vel_N2B
        self._pos_rows[...] = self._agents_N2B
        self._rel_rows[...] = self._rel_NM2B

    def _score(self) -> None:
        team_B = -self._dist_NMB[:, : self._marks].min(axis=0).sum(axis=0)
        bumps_NMB = self._dist_NMB[:, self._marks :] < self._apart_NM1[:, self._marks :]
        np.add.reduce(bumps_NMB, axis=1, dtype=np.float64, out=self._rewards_NB)
        self._rewards_NB *= -self._local_ratio
        self._rewards_NB += (1.0 - self._local_ratio) * team_B
