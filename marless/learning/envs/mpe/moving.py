"""The games of mpe2 in which agents walk: to a landmark, to all of them, to a secret goal, or pushed away from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.base import BoolArray
from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv, length, planes
from marless.learning.envs.mpe.options import ParticleOptions, Sight, TeamOptions


class Simple(ParticleEnv):
    """One agent, whose reward is −(distance to the landmark)²; it observes its velocity and where the landmark is."""

    rewards = "cooperative"

    def __init__(self, options: ParticleOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        role = AgentRole(name="agent", agents=("agent_0",), obs_size=4)
        super().__init__((role,), (Landmarks(count=1),), options, batch, dtype)

    def _write_rows(self) -> None:
        self._rows_SB[:2] = self._vel_N2B[0]
        self._rows_SB[2:] = self._rel_NM2B[0, 0]

    def _score(self) -> None:
        np.negative(np.square(self._rel_NM2B[:, 0]).sum(axis=1), out=self._rewards_NB)


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
        role = AgentRole(
            name="agent",
            agents=names,
            obs_size=4 + 2 * marks + 4 * others,
            collides=True,
            size=0.15,
            entities=options.entities(4, options.marks, options.agents - 1),
        )
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
            bumps_NMB = self._dist_NMB[:, self._marks :] < self._apart_NM1[:, self._marks :]
            np.add.reduce(bumps_NMB, axis=1, dtype=np.float64, out=self._rewards_NB)
            self._rewards_NB *= -self._options.local_ratio
        self._rewards_NB += (1.0 - self._options.local_ratio) * team_B

    def _over(self) -> BoolArray:
        if not self._options.terminate_on_success:
            return super()._over()
        return np.logical_and.reduce(self._to_mark_MB < COVERED, axis=0, out=np.empty(self.batch, np.bool_))


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


MARKS = 2
MARK_COLOURS_6 = np.array([0.1, 0.9, 0.1, 0.1, 0.1, 0.9])
"""Red, green and blue of each landmark."""
AGENT_COLOURS_3M = np.array([[0.25, 0.25], [0.75, 0.25], [0.25, 0.75]])
"""Red, green and blue of the good agent for each goal."""


class SimplePush(ParticleEnv):
    """Competitive: a good agent walks to a goal that the adversary does not know; the two collide.

    The goal is one of two landmarks. Reward: the good agent's is −d(agent, goal), the adversary's is
    d(agent, goal) − d(adversary, goal). Observation of the adversary: its velocity, then the landmarks and the other
    agent relative to it. Observation of the good agent: its velocity, the goal relative to it, its own colour (which
    tells the goal), the landmarks relative to it, their colours, and the other agent relative to it.
    """

    rewards = "competitive"
    goals = 1

    def __init__(self, options: ParticleOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
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
