"""The games of mpe2 in which adversaries hunt good agents: among obstacles, or in a world with food and forests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.base import BoolArray
from marless.learning.envs.mpe.engine import AgentRole, FloatArray64, IntArray, Landmarks, ParticleEnv, Rows, planes
from marless.learning.envs.mpe.options import (
    ParticleOptions,
    Sight,
    SightOptions,
    check_count,
    nearest,
)

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
        check_count("num_good + num_adversaries", self.num_good + self.num_adversaries)


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
        super().__init__(_tag_roles(options), (obstacles,), options, batch, dtype)
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


def _tag_roles(options: TagOptions) -> tuple[AgentRole, AgentRole]:
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


WORDS = 4


@dataclass(frozen=True, kw_only=True)
class WorldCommOptions(HuntOptions):
    """Options of `simple_world_comm`; the leader is one of the adversaries."""

    num_good: int = 2
    num_adversaries: int = 4
    num_obstacles: int = 1
    num_food: int = 2
    """Number of places where good agents find food."""
    num_forests: int = 2
    """Number of forests; may be 0."""

    @property
    def marks(self) -> int:
        """The number of landmarks: obstacles, food and forests."""
        return self.num_obstacles + self.num_food + self.num_forests


class SimpleWorldComm(ParticleEnv):
    """Competitive: adversaries hunt good agents, which look for food; forests hide who is inside.

    An agent sees another one if they are in the same forest, or if both are in none; the leader sees all. Landmarks are
    always seen. Every overlap of an adversary and a good agent gives +5 to every adversary and −5 to that good agent.
    An adversary also pays 0.1 times the distance of the nearest good agent. A good agent gets +2 for each food that it
    overlaps, and pays 0.05 times the distance of the nearest food and twice the penalty of `beyond`.

    Observation: own velocity and position, then landmarks and other agents in order relative to it, the velocities of
    the other good agents, whether it is in each forest (1 or −1), and the leader's last message. Good agents do not get
    the message, and are told of the forests before the velocities. Position and velocity of agents unseen are zeros. A
    discrete action of the leader is move + 5·word.
    """

    rewards = "competitive"
    words = WORDS

    def __init__(self, options: WorldCommOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        food = Landmarks(count=options.num_food, size=0.03, within=WITHIN)
        forests = Landmarks(count=options.num_forests, size=0.3, within=WITHIN)
        obstacles = Landmarks(count=options.num_obstacles, collide=True, size=0.2, within=WITHIN)
        super().__init__(_world_roles(options), (obstacles, food, forests), options, batch, dtype)
        self._adversaries, self._drawn_twice = options.num_adversaries, options.num_food + options.num_forests
        self._food = slice(options.num_obstacles, options.num_obstacles + options.num_food)
        self._forests = slice(self._food.stop, options.marks)
        self._others_NO = self._seen_NM[:, self._marks :]
        self._inside_NFB = np.zeros((len(self._others_NO), options.num_forests, batch), np.bool_)
        self._rows = _world_rows(self._role_rows(), options)

    def _place(self, copies: IntArray) -> None:
        super()._place(copies)
        # mpe2 draws the places of food and forests twice, and keeps the second ones.
        again_BM2 = self._rng.uniform(-WITHIN, WITHIN, (len(copies), self._drawn_twice, 2))
        self._marks_M2B[self._food.start :, :, copies] = again_BM2.transpose(1, 2, 0)

    def _visible(self) -> BoolArray:
        """bool [N, N − 1, B]: agent n sees the other agent."""
        inside_NFB = self._dist_NMB[:, self._forests] < self._apart_NM1[:, self._forests]
        self._inside_NFB = inside_NFB
        together_NOB = (inside_NFB[:, None] & inside_NFB[self._others_NO]).any(axis=2)
        hidden_NB = inside_NFB.any(axis=1)
        seen_NOB: BoolArray = together_NOB | ~(hidden_NB[:, None] | hidden_NB[self._others_NO])
        seen_NOB[0] = True
        return seen_NOB

    def _write_rows(self) -> None:
        seen_NOB = self._visible()
        others_NO2B = self._rel_NM2B[:, self._marks :] * seen_NOB[:, :, None]
        speeds_NO2B = self._vel_N2B[self._others_NO] * seen_NOB[:, :, None]
        inside_NFB = 2.0 * self._inside_NFB - 1.0
        for rows in self._rows:
            agents = rows.agents
            rows.own[:, 0], rows.own[:, 1] = self._vel_N2B[agents], self._agents_N2B[agents]
            rows.marks[...] = self._rel_NM2B[agents, : self._marks]
            rows.others[...] = others_NO2B[agents]
            rows.speeds[...] = speeds_NO2B[agents, others_NO2B.shape[1] - rows.speeds.shape[1] :]
            rows.inside[...] = inside_NFB[agents]
            rows.heard[...] = self._said_NWB[0, : rows.heard.shape[1]]

    def _score(self) -> None:
        n, good = self._adversaries, slice(self._adversaries, None)
        touches_GAB = touches(self._dist_NMB, self._apart_NM1, self._marks, n)
        to_prey_AGB = self._dist_NMB[:n, self._marks + n - 1 :]
        self._rewards_NB[:n] = 5.0 * touches_GAB.sum(axis=(0, 1)) - 0.1 * to_prey_AGB.min(axis=1)
        to_food_GFB = self._dist_NMB[good, self._food]
        eating_GFB = to_food_GFB < self._apart_NM1[good, self._food]
        self._rewards_NB[good] = 2.0 * eating_GFB.sum(axis=1) - 5.0 * touches_GAB.sum(axis=1)
        self._rewards_NB[good] -= 2.0 * beyond(self._agents_N2B[good]) + 0.05 * to_food_GFB.min(axis=1)


@dataclass(frozen=True, kw_only=True)
class _RoleRows:
    """Where the observations of one role are written: views of the engine's rows."""

    agents: slice
    own: Rows
    marks: Rows
    others: Rows
    speeds: Rows
    inside: Rows
    heard: Rows
    """No rows for good agents."""


def _world_roles(options: WorldCommOptions) -> tuple[AgentRole, ...]:
    good, adversaries = options.num_good, options.num_adversaries
    size = 4 + 2 * (options.marks + adversaries + good - 1) + 2 * good + options.num_forests
    names = (("leadadversary", 1), ("adversary", adversaries - 1))
    hunters = [
        AgentRole(
            name=name,
            agents=numbered(name, count),
            obs_size=size + WORDS,
            speaks=name == "leadadversary",
            collides=True,
            size=0.075,
            force=3.0,
            top_speed=1.0,
        )
        for name, count in names
        if count
    ]
    prey = AgentRole(
        name="agent",
        agents=numbered("agent", good),
        obs_size=size - 2,
        collides=True,
        size=0.045,
        force=4.0,
        top_speed=1.3,
    )
    return (*hunters, prey)


def _world_rows(each: list[Rows], options: WorldCommOptions) -> list[_RoleRows]:
    forests, others, first = options.num_forests, options.num_adversaries + options.num_good - 1, 0
    found = []
    for rows_NOB in each:
        prey = rows_NOB is each[-1]
        good, at = options.num_good - prey, 4 + 2 * (options.marks + others)
        inside, speeds = (at, at + forests) if prey else (at + 2 * good, at)
        found.append(
            _RoleRows(
                agents=slice(first, first + len(rows_NOB)),
                own=planes(rows_NOB, 0, 2),
                marks=planes(rows_NOB, 4, options.marks),
                others=planes(rows_NOB, 4 + 2 * options.marks, others),
                speeds=planes(rows_NOB, speeds, good),
                inside=rows_NOB[:, inside : inside + forests],
                heard=rows_NOB[:, at + forests + 2 * good :],
            )
        )
        first += len(rows_NOB)
    return found
