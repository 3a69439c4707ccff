"""`mpe/simple_reference`: two agents tell each other where to go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv, length, planes
from marless.learning.envs.mpe.options import ParticleOptions, check_ratio

MARKS = 3
COLOURS_3M = 0.25 + 0.5 * np.eye(MARKS)
"""Red, green and blue of each landmark."""


@dataclass(frozen=True, kw_only=True)
class ReferenceOptions(ParticleOptions):
    """Options of `simple_reference`."""

    local_ratio: float = 0.5
    """Weight λ of one distance in an agent's reward; the weight of the mean of both distances is 1 − λ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("local_ratio", self.local_ratio)


class SimpleReference(ParticleEnv):
    """Cooperative: each agent knows the goal of the other agent only; both speak and walk at the same time.

    Reward of agent i: −λ·d_i − (1 − λ)·(d_0 + d_1)/2, where d_i is the distance of the *other* agent to the goal that i
    knows. Observation: own velocity, the landmarks relative to it, the colour of the goal that it knows, and the other
    agent's last message. A discrete action is move + 5·word.
    """

    rewards = "cooperative"
    goals = 2
    words = 10

    def __init__(self, options: ReferenceOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        size = 2 + 2 * MARKS + 3 + self.words
        role = AgentRole(name="agent", agents=("agent_0", "agent_1"), obs_size=size, speaks=True)
        super().__init__((role,), (Landmarks(count=MARKS),), options, batch, dtype)
        self._local_ratio = options.local_ratio
        (rows_NOB,) = self._role_rows()
        self._vel_rows, self._rel_rows = rows_NOB[:, :2], planes(rows_NOB, 2, MARKS)
        self._colour_rows, self._said_rows = rows_NOB[:, 8:11], rows_NOB[:, 11:]

    def _prepare_episode(self) -> None:
        super()._prepare_episode()
        self._colour_rows[...] = COLOURS_3M[:, self._goal_GB].transpose(1, 0, 2)

    def _write_rows(self) -> None:
        self._vel_rows[...] = self._vel_N2B
        self._rel_rows[...] = self._rel_NM2B[:, :MARKS]
        self._said_rows[...] = self._said_NWB[::-1]

    def _score(self) -> None:
        near_NB = -length(self._agents_N2B[::-1] - self._goal_G2B)
        np.multiply(near_NB, self._local_ratio, out=self._rewards_NB)
        self._rewards_NB += (1.0 - self._local_ratio) * near_NB.mean(axis=0)
