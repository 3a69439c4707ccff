"""`mpe/simple_world_comm`: a hunt with food, forests that hide agents, and a leader who speaks to the adversaries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.base import BoolArray
from marless.learning.envs.mpe.engine import AgentRole, IntArray, Landmarks, ParticleEnv, Rows, planes
from marless.learning.envs.mpe.options import check_count
from marless.learning.envs.mpe.tag import WITHIN, HuntOptions, beyond, numbered, touches

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("num_food", self.num_food)
        check_count("num_forests", self.num_forests, least=0)

    @property
    def marks(self) -> int:
        """The number of landmarks: obstacles, food and forests."""
        return self.num_obstacles + self.num_food + self.num_forests


class SimpleWorldComm(ParticleEnv):
    """Competitive: adversaries hunt good agents, which look for food; forests hide who is inside.

    An agent sees another one if they are in the same forest, or if both are in none; the leader sees all. Landmarks are
    always seen. Every overlap of an adversary and a good agent gives +5 to every adversary and −5 to that good agent.
    An adversary also pays 0.1 times the distance of the nearest good agent. A good agent gets +2 for each food that it
    overlaps, and pays 0.05 times the distance of the nearest food and twice the penalty of `tag.beyond`.

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
        super().__init__(_roles(options), (obstacles, food, forests), options, batch, dtype)
        self._adversaries, self._drawn_twice = options.num_adversaries, options.num_food + options.num_forests
        self._food = slice(options.num_obstacles, options.num_obstacles + options.num_food)
        self._forests = slice(self._food.stop, options.marks)
        self._others_NO = self._seen_NM[:, self._marks :]
        self._inside_NFB = np.zeros((len(self._others_NO), options.num_forests, batch), np.bool_)
        self._rows = _rows(self._role_rows(), options)

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


def _roles(options: WorldCommOptions) -> tuple[AgentRole, ...]:
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


def _rows(each: list[Rows], options: WorldCommOptions) -> list[_RoleRows]:
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
