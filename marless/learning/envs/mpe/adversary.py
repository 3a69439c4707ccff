"""`mpe/simple_adversary`: good agents know a goal that an adversary does not know and tries to find."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv, length
from marless.learning.envs.mpe.options import TeamOptions
from marless.learning.envs.mpe.sight import Sight


@dataclass(frozen=True, kw_only=True)
class AdversaryOptions(TeamOptions):
    """Options of `simple_adversary`; `agents` does not count the one adversary."""

    agents: int = 2


class SimpleAdversary(ParticleEnv):
    """Competitive: one adversary looks for the goal, which N good agents know; agents pass through one another.

    The goal is one of the landmarks. Reward: the adversary's is −d(adversary, goal); every good agent's is
    d(adversary, goal) − the nearest good agent's distance. Observation: the goal (good agents only), then
    landmarks, then other agents in order, all relative to the observer.
    """

    rewards = "competitive"
    goals = 1

    def __init__(self, options: AdversaryOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        n, counts = options.agents, (options.marks, options.agents)
        names, seen = tuple(f"agent_{i}" for i in range(n)), sum(options.places(*counts))
        roles = (
            AgentRole(name="adversary", agents=("adversary_0",), obs_size=2 * seen, size=0.15),
            AgentRole(name="agent", agents=names, obs_size=2 * seen + 2, size=0.15),
        )
        super().__init__(roles, (Landmarks(count=options.marks, size=0.08),), options, batch, dtype)
        self._to_goal_N2B = np.zeros((n + 1, 2, batch))
        adversary_1OB, good_NOB = self._role_rows()
        self._goal_rows = good_NOB[:, :2]
        self._adversary_sight = Sight(adversary_1OB, 0, slice(0, 1), counts, options)
        self._good_sight = Sight(good_NOB, 2, slice(1, None), counts, options)

    def _write_rows(self) -> None:
        np.subtract(self._goal_G2B, self._agents_N2B, out=self._to_goal_N2B)
        self._goal_rows[...] = self._to_goal_N2B[1:]
        self._adversary_sight.write(self._rel_NM2B)
        self._good_sight.write(self._rel_NM2B)

    def _score(self) -> None:
        dist_NB = length(self._to_goal_N2B)
        self._rewards_NB[0] = -dist_NB[0]
        self._rewards_NB[1:] = dist_NB[0] - dist_NB[1:].min(axis=0)
