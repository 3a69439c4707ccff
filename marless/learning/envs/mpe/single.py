"""`mpe/simple`: one agent walks to a landmark."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv
from marless.learning.envs.mpe.options import ParticleOptions


@dataclass(frozen=True, kw_only=True)
class SimpleOptions(ParticleOptions):
    """Options of `simple`."""


class Simple(ParticleEnv):
    """One agent, whose reward is −(distance to the landmark)²; it observes its velocity and where the landmark is."""

    rewards = "cooperative"

    def __init__(self, options: SimpleOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        role = AgentRole(name="agent", agents=("agent_0",), obs_size=4)
        super().__init__((role,), (Landmarks(count=1),), options, batch, dtype)

    def _write_rows(self) -> None:
        self._rows_SB[:2] = self._vel_N2B[0]
        self._rows_SB[2:] = self._rel_NM2B[0, 0]

    def _score(self) -> None:
        np.negative(np.square(self._rel_NM2B[:, 0]).sum(axis=1), out=self._rewards_NB)
