"""`mpe/simple_tag`: adversaries hunt faster good agents among obstacles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.base import BoolArray
from marless.learning.envs.mpe.engine import AgentRole, FloatArray64, Landmarks, ParticleEnv, planes
from marless.learning.envs.mpe.options import ParticleOptions, SightOptions, check_count, check_flag, check_ratio
from marless.learning.envs.mpe.sight import Sight, nearest

WITHIN = 0.9
"""Landmarks lie within ± this in both coordinates."""


@dataclass(frozen=True, kw_only=True)
class HuntOptions(ParticleOptions):
    """Options of the games in which adversaries hunt good agents."""

    num_good: int
    """Number of good agents."""
    num_adversaries: int
    """Number of adversaries."""
    num_obstacles: int
    """Number of round obstacles; may be 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_good", self.num_good)
        check_count("num_adversaries", self.num_adversaries)
        check_count("num_good + num_adversaries", self.num_good + self.num_adversaries)
        check_count("num_obstacles", self.num_obstacles, least=0)


@dataclass(frozen=True, kw_only=True)
class TagOptions(HuntOptions, SightOptions):
    """Options of `simple_tag`."""

    num_good: int = 1
    num_adversaries: int = 3
    num_obstacles: int = 2
    prey_speed: float = 1.0
    """Factor of the good agents' force and top speed; 0.5 is mpe2's `curriculum`, whose later stages are 0.75 and 1."""
    terminate_on_success: bool = False
    """True: an episode terminates when every good agent is touched by an adversary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("prey_speed", self.prey_speed)
        check_flag("terminate_on_success", self.terminate_on_success)


class SimpleTag(ParticleEnv):
    """Competitive: adversaries hunt good agents, which are faster; all collide, with obstacles too.

    Each pair of an adversary and a good agent that overlap gives +10 to every adversary and −10 to that good agent.
    Good agents also pay the penalty of `beyond`. Observation: own velocity and position, then obstacles and other
    agents in order relative to it, then the velocities of the other good agents. With `num_agent_neighbors`, the
    velocities are those of the agents in the places before, zeros for adversaries.
    """

    rewards = "competitive"

    def __init__(self, options: TagOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        good, adversaries = options.num_good, options.num_adversaries
        obstacles = Landmarks(count=options.num_obstacles, collide=True, size=0.2, within=WITHIN)
        super().__init__(_roles(options), (obstacles,), options, batch, dtype)
        self._adversaries, self._options = adversaries, options
        self._others_NO = self._seen_NM[:, self._marks :]
        self._good_NO11 = (self._others_NO >= adversaries)[:, :, None, None]
        self._touches_GAB = np.zeros((good, adversaries, batch), np.bool_)
        counts, rows = (options.num_obstacles, adversaries + good - 1), self._role_rows()
        self._who = slice(0, adversaries), slice(adversaries, None)
        self._own_rows = [planes(rows_NOB, 0, 2) for rows_NOB in rows]
        self._sights = [Sight(rows_NOB, 4, who, counts, options) for rows_NOB, who in zip(rows, self._who, strict=True)]
        start = 4 + 2 * sum(options.places(*counts))
        self._vel_rows = [planes(rows_NOB, start, (rows_NOB.shape[1] - start) // 2) for rows_NOB in rows]

    def _write_rows(self) -> None:
        for who, own, sight in zip(self._who, self._own_rows, self._sights, strict=True):
            own[:, 0], own[:, 1] = self._vel_N2B[who], self._agents_N2B[who]
            sight.write(self._rel_NM2B)
        places, (hunters, prey) = self._options.num_agent_neighbors, self._who
        if places is None:
            self._vel_rows[0][...] = self._vel_N2B[prey]
            self._vel_rows[1][...] = self._vel_N2B[self._others_NO[prey, self._adversaries :]]
            return
        speeds_NO2B = self._vel_N2B[self._others_NO] * self._good_NO11
        near_NK2B = nearest(self._rel_NM2B[:, self._marks :], speeds_NO2B, places)
        self._vel_rows[0][...], self._vel_rows[1][...] = near_NK2B[hunters], near_NK2B[prey]

    def _score(self) -> None:
        self._touches_GAB = touches(self._dist_NMB, self._apart_NM1, self._marks, self._adversaries)
        self._rewards_NB[: self._adversaries] = 10.0 * self._touches_GAB.sum(axis=(0, 1))
        self._rewards_NB[self._adversaries :] = -10.0 * self._touches_GAB.sum(axis=1)
        self._rewards_NB[self._adversaries :] -= beyond(self._agents_N2B[self._adversaries :])

    def _over(self) -> BoolArray:
        if not self._options.terminate_on_success:
            return super()._over()
        caught_GB: BoolArray = np.logical_or.reduce(self._touches_GAB, axis=1)
        return np.logical_and.reduce(caught_GB, axis=0, out=np.empty(self.batch, np.bool_))


def _roles(options: TagOptions) -> tuple[AgentRole, AgentRole]:
    good, adversaries, speed = options.num_good, options.num_adversaries, options.prey_speed
    size = 4 + 2 * sum(options.places(options.num_obstacles, adversaries + good - 1))
    near = options.num_agent_neighbors
    hunters = AgentRole(
        name="adversary",
        agents=numbered("adversary", adversaries),
        obs_size=size + 2 * (good if near is None else near),
        collides=True,
        size=0.075,
        force=3.0,
        top_speed=1.0,
    )
    prey = AgentRole(
        name="agent",
        agents=numbered("agent", good),
        obs_size=size + 2 * (good - 1 if near is None else near),
        collides=True,
        size=0.05,
        force=4.0 * speed,
        top_speed=1.3 * speed,
    )
    return hunters, prey


def numbered(name: str, count: int) -> tuple[str, ...]:
    """The names of the agents of a class."""
    return tuple(f"{name}_{i}" for i in range(count))


def touches(dist_NMB: FloatArray64, apart_NM1: FloatArray64, marks: int, adversaries: int) -> BoolArray:
    """bool [good agents, adversaries, B]: the two overlap. Adversaries come first, and are seen after landmarks."""
    pair = (slice(adversaries, None), slice(marks, marks + adversaries))
    overlap_GAB: BoolArray = dist_NMB[pair] < apart_NM1[pair]
    return overlap_GAB


def beyond(pos_N2B: FloatArray64) -> FloatArray64:
    """Penalty [N, B] of leaving the square ±0.9, summed over the coordinates x.

    0 up to |x| = 0.9, then 10·(|x| − 0.9) up to |x| = 1, then e^(2·|x| − 2), at most 10.
    """
    x_N2B = np.abs(pos_N2B)
    # The plane has no bounds, and `exp` would overflow far away; from 2.2 on the penalty is 10 anyway.
    outside = np.minimum(np.exp(2.0 * np.minimum(x_N2B, 3.0) - 2.0), 10.0)
    penalty_N2B = np.where(x_N2B < 0.9, 0.0, np.where(x_N2B < 1.0, (x_N2B - 0.9) * 10.0, outside))
    return penalty_N2B[:, 0] + penalty_N2B[:, 1]
