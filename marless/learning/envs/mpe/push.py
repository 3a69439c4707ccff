"""`mpe/simple_push`: an adversary pushes a good agent away from its goal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv, length, planes
from marless.learning.envs.mpe.options import ParticleOptions

MARKS = 2
MARK_COLOURS_6 = np.array([0.1, 0.9, 0.1, 0.1, 0.1, 0.9])
"""Red, green and blue of each landmark."""
AGENT_COLOURS_3M = np.array([[0.25, 0.25], [0.75, 0.25], [0.25, 0.75]])
"""Red, green and blue of the good agent for each goal."""


@dataclass(frozen=True, kw_only=True)
class PushOptions(ParticleOptions):
    """Options of `simple_push`."""


class SimplePush(ParticleEnv):
    """Competitive: a good agent walks to a goal that the adversary does not know; the two collide.

    The goal is one of two landmarks. Reward: the good agent's is −d(agent, goal), the adversary's is
    d(agent, goal) − d(adversary, goal). Observation of the adversary: its velocity, then the landmarks and the other
    agent relative to it. Observation of the good agent: its velocity, the goal relative to it, its own colour (which
    tells the goal), the landmarks relative to it, their colours, and the other agent relative to it.
    """

    rewards = "competitive"
    goals = 1

    def __init__(self, options: PushOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        roles = (
            AgentRole(name="adversary", agents=("adversary_0",), obs_size=8, collides=True),
            AgentRole(name="agent", agents=("agent_0",), obs_size=19, collides=True),
        )
        super().__init__(roles, (Landmarks(count=MARKS),), options, batch, dtype)
        self._to_goal_N2B = np.zeros((2, 2, batch))
        adversary_1OB, good_1OB = self._role_rows()
        self._adversary_vel, self._adversary_rel = adversary_1OB[0, :2], planes(adversary_1OB, 2, MARKS + 1)[0]
        self._good_vel, self._good_goal, self._good_colour = np.split(good_1OB[0, :7], [2, 4])
        self._good_marks, self._good_other = planes(good_1OB, 7, MARKS)[0], good_1OB[0, 17:]
        # Colours of landmarks never change, and nothing else writes to these rows.
        good_1OB[0, 11:17] = MARK_COLOURS_6[:, None]

    def _prepare_episode(self) -> None:
        super()._prepare_episode()
        self._good_colour[...] = AGENT_COLOURS_3M[:, self._goal_GB[0]]

    def _write_rows(self) -> None:
        np.subtract(self._goal_G2B, self._agents_N2B, out=self._to_goal_N2B)
        self._adversary_vel[...], self._good_vel[...] = self._vel_N2B
        self._adversary_rel[...] = self._rel_NM2B[0]
        self._good_goal[...] = self._to_goal_N2B[1]
        self._good_marks[...] = self._rel_NM2B[1, :MARKS]
        self._good_other[...] = self._rel_NM2B[1, MARKS]

    def _score(self) -> None:
        dist_NB = length(self._to_goal_N2B)
        self._rewards_NB[0] = dist_NB[1] - dist_NB[0]
        self._rewards_NB[1] = -dist_NB[1]
