"""The engine of the multi-particle games: motion, contacts, messages, and episodes in any number of copies, in NumPy.

Rules and numbers are those of mpe2 1.1.1; with one copy, `reset(seed)` and every step equal mpe2's to rounding.
Entities (agents, then landmarks) live in an unbounded plane. One env step is 0.1 time units: positions move by the old
velocities, then velocities are damped and pushed, p ← p + 0.1·v and v ← 0.75·v + 0.1·(u + F), where u is the agents'
own force and F the contact force; a velocity above the agent's top speed is scaled down to it.

Work arrays are entity-major with the copies last (E entities, N agents, M entities seen, G goals, W words, 2 plane
components, B copies), so that each array operation runs over contiguous copies. Observations are written once,
feature-major; the observations of an agent class and the global state are views of those rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from marless.core.errors import CorruptError
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BoolArray,
    Box,
    Discrete,
    Entities,
    EnvSpaces,
    Frame,
    Scene,
    Transition,
    Truncatable,
    load_generator,
    save_generator,
    saved,
)

if TYPE_CHECKING:
    from marless.learning.envs.mpe.options import ParticleOptions

DT = 0.1
DAMPING = 0.25
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3
CONTACT_REACH = 40 * CONTACT_MARGIN
"""Gap between two entities beyond which the contact force is below 1e-18 and left out."""

PUSH_2A = np.array([[0, -1, 1, 0, 0], [0, 0, 0, -1, 1]], dtype=np.float64)
"""Direction of each move: none, left, right, down, up."""
MOVES = PUSH_2A.shape[1]

FloatArray64 = NDArray[np.float64]
IntArray = NDArray[np.intp]
Rows = NDArray[Any]  # Any: float32, or float64 for comparison


@dataclass(frozen=True, kw_only=True)
class AgentRole:
    """An agent class: its agents, how much they observe, and what they can do."""

    name: str
    agents: tuple[str, ...]
    obs_size: int
    moves: bool = True
    speaks: bool = False
    """True: every action also says one of the game's words (continuous actions: each with a strength)."""
    collides: bool = False
    size: float = 0.05
    """Radius."""
    force: float = 5.0
    """Force of a move."""
    top_speed: float = np.inf
    entities: tuple[Entities, ...] = ()
    """Where its observations describe others, if nets can read them in any order."""

    def action(self, words: int, *, continuous: bool) -> Discrete | Box:
        """The action space; a discrete action that moves and speaks is move + 5·word."""
        if continuous:
            size = MOVES * self.moves + words * self.speaks
            return Box(low=(0.0,) * size, high=(1.0,) * size)
        return Discrete((MOVES if self.moves else 1) * (words if self.speaks else 1))


@dataclass(frozen=True, kw_only=True)
class Landmarks:
    """Landmarks of one kind. They never move."""

    count: int
    collide: bool = False
    size: float = 0.05
    """Radius."""
    within: float = 1.0
    """Coordinates are drawn uniformly from ± this."""


class ParticleEnv(Truncatable, ABC):
    """Base of the games, which write observations (`_write_rows`) and rewards (`_score`)."""

    spaces: EnvSpaces
    batch: int
    rewards: ClassVar[Literal["cooperative", "competitive"]]
    """See `EnvSpaces`."""
    goals: ClassVar[int] = 0
    """Number of landmarks G that are drawn as goals in each copy, with repetition."""
    words: ClassVar[int] = 0
    """Number of words W that agents can say."""

    def __init__(
        self,
        roles: tuple[AgentRole, ...],
        landmarks: tuple[Landmarks, ...],
        options: ParticleOptions,
        batch: int,
        dtype: DTypeLike,
    ) -> None:
        self.spaces, self._max_cycles = self._spaces(roles, options), options.max_cycles
        self._continuous = options.continuous_actions
        self.batch, self._roles = batch, roles
        movers, marks = len(self.spaces.agents), sum(kind.count for kind in landmarks)
        self._marks = marks
        self._within_E1 = np.array([1.0] * movers + [k.within for k in landmarks for _ in range(k.count)])[:, None]
        # For each agent, the indices of the entities it sees: every landmark, then every other agent.
        seen = [[*range(movers, movers + marks), *(j for j in range(movers) if j != i)] for i in range(movers)]
        self._seen_NM: IntArray = np.array(seen, np.intp)
        self._steps_B = np.zeros(batch, np.int64)
        self._pos_E2B = np.zeros((movers + marks, 2, batch))
        self._agents_N2B, self._marks_M2B = self._pos_E2B[:movers], self._pos_E2B[movers:]
        self._vel_N2B, self._force_N2B = np.zeros((2, movers, 2, batch))
        self._said_NWB = np.zeros((sum(len(r.agents) for r in roles if r.speaks), self.words, batch))
        self._goal_GB = np.zeros((self.goals, batch), np.int64)
        self._goal_G2B = np.zeros((self.goals, 2, batch))
        self._rel_NM2B = np.zeros((*self._seen_NM.shape, 2, batch))
        self._dist_NMB = np.zeros((*self._seen_NM.shape, batch))
        self._rewards_NB = np.zeros((movers, batch))
        self._rows_SB, self._last_rows_SB = np.zeros((2, self.spaces.state_size, batch), dtype)
        self._frame, self._last_frame = self._view(self._rows_SB), self._view(self._last_rows_SB)
        stops = np.cumsum([len(c.agents) for c in self.spaces.classes])[:-1]
        self._forces, self._rewards = (tuple(np.split(x, stops)) for x in (self._force_N2B, self._rewards_NB))
        self._last_scene: Scene | None = None
        self._cut_B = np.zeros(batch, np.bool_)
        self._rng = np.random.default_rng(0)
        self._set_limits(landmarks)

    def reset(self, seed: int) -> Frame:
        """Start an episode in every copy; a single copy starts where mpe2's `reset(seed=seed)` does."""
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._cut_B[:] = False
        self._start(np.arange(self.batch))
        return self._frame

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Move every agent once; a copy ends after `max_cycles` env steps, or when the game is over in it."""
        self._move(actions)
        self._look()
        self._score()
        self._steps_B += 1
        truncated = self._steps_B == self._max_cycles
        # As in mpe2, the last step truncates even if the game is over in it.
        terminated = self._over() & ~truncated
        truncated |= self._cut_B & ~terminated
        ended, final = truncated | terminated, self._frame
        if ended.any():
            self._cut_B[:] = False
            if ended[0]:
                self._last_scene = self.picture()
            # Copied first, because frames are views of the rows, and the next episodes are written over them.
            np.copyto(self._last_rows_SB, self._rows_SB)
            final = self._last_frame
            self._start(np.flatnonzero(ended))
        return Transition(
            frame=self._frame,
            final=final,
            rewards=self._rewards,
            terminated=tuple(np.repeat(terminated[None], len(c.agents), axis=0) for c in self.spaces.classes),
            truncated=truncated,
            ended=ended,
        )

    def save(self) -> Arrays:
        state = {name: array.copy() for name, array in self._state().items()}
        return {**state, "random": save_generator(self._rng)}

    def load(self, arrays: Arrays) -> Frame:
        state = self._state()
        loaded = {name: saved(arrays, name, array.dtype.name, array.shape) for name, array in state.items()}
        for name, most in (("steps", self._max_cycles), ("goal", self._marks)):
            if name in loaded and not ((loaded[name] >= 0) & (loaded[name] < most)).all():
                raise CorruptError(f"saved environment: {name} holds numbers outside 0 to {most - 1}")
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        for name, array in state.items():
            array[...] = loaded[name]
        self._cut_B[:] = False
        self._prepare_episode()
        self._look()
        return self._frame

    def picture(self, *, ended: bool = False) -> Scene:
        if ended and self._last_scene:
            return self._last_scene
        goal = self._goal_G2B[0, :, 0].copy() if self.goals == 1 else None
        return Scene(self._agents_N2B[:, :, 0].copy(), self._marks_M2B[:, :, 0].copy(), goal, self._size_E)

    @abstractmethod
    def _write_rows(self) -> None:
        """Write all observations, one after another, into `_rows_SB`."""

    @abstractmethod
    def _score(self) -> None:
        """Write the rewards of the present positions and messages into `_rewards_NB`."""

    def _over(self) -> BoolArray:
        """The copies [B] whose game is over before it is truncated."""
        return np.zeros(self.batch, np.bool_)

    def _prepare_episode(self) -> None:
        """Compute what stays as it is during an episode, after goals and landmarks were drawn or loaded."""
        if self.goals:
            # NumPy puts the axes of index arrays that are apart from each other first: [G, B, 2].
            self._goal_G2B[...] = self._marks_M2B[self._goal_GB, :, np.arange(self.batch)].transpose(0, 2, 1)

    def _place(self, copies: IntArray) -> None:
        """Draw goals and positions in these copies, in mpe2's order."""
        if self.goals:
            self._goal_GB[:, copies] = self._rng.integers(self._marks, size=(len(copies), self.goals)).T
        # Copy by copy, agents before landmarks and x before y: with one copy these are the draws of mpe2, bit for bit.
        draws_BE2 = self._rng.uniform(-self._within_E1, self._within_E1, (len(copies), *self._pos_E2B.shape[:2]))
        self._pos_E2B[:, :, copies] = draws_BE2.transpose(1, 2, 0)

    def _state(self) -> dict[str, NDArray[Any]]:  # Any: float64 or int64
        """The arrays that later steps depend on; all others are computed from them."""
        state: dict[str, NDArray[Any]] = {"steps": self._steps_B, "position": self._pos_E2B, "velocity": self._vel_N2B}
        if self.goals:
            state["goal"] = self._goal_GB
        if self.words:
            state["said"] = self._said_NWB
        return state

    def _start(self, copies: IntArray) -> None:
        self._steps_B[copies] = 0
        self._vel_N2B[:, :, copies] = 0.0
        self._said_NWB[:, :, copies] = 0.0
        self._place(copies)
        self._prepare_episode()
        self._look()

    def _move(self, actions: tuple[ActionArray, ...]) -> None:
        self._act(actions)
        for part in self._contacts:
            self._touch(part)
        # Positions before speeds, and so by the speeds of the step before: the order of mpe2.
        self._agents_N2B += DT * self._vel_N2B
        self._vel_N2B *= 1.0 - DAMPING
        self._vel_N2B += DT * self._force_N2B
        if self._top_N1 is not None:
            speed_NB = np.sqrt(self._vel_N2B[:, 0] ** 2 + self._vel_N2B[:, 1] ** 2)
            agent, copy = fast = np.nonzero(speed_NB > self._top_N1)
            self._vel_N2B[agent, :, copy] = (
                self._vel_N2B[agent, :, copy] / speed_NB[fast][:, None] * self._top_N1[agent]
            )

    def _act(self, actions: tuple[ActionArray, ...]) -> None:
        """Turn actions into the agents' own forces and messages."""
        heard = 0
        for role, force_N2B, action in zip(self._roles, self._forces, actions, strict=True):
            if role.moves and self._continuous:
                # The components are those of discrete moves: none, left, right, down, up.
                push = np.clip(action[..., :MOVES], 0.0, 1.0)
                towards = (push[..., 2] - push[..., 1], push[..., 4] - push[..., 3])
                force_N2B[...] = role.force * np.stack(towards, axis=1, dtype=np.float64)
            elif role.moves:
                move_NB = action % MOVES if role.speaks else action
                force_N2B[...] = (role.force * PUSH_2A)[:, move_NB].transpose(1, 0, 2)
            if role.speaks:
                said_NWB = self._said_NWB[heard : heard + len(role.agents)]
                heard += len(role.agents)
                if self._continuous:
                    first = MOVES if role.moves else 0
                    said_NWB[...] = np.clip(action[..., first:], 0.0, 1.0).transpose(0, 2, 1)
                else:
                    word_NB = action // MOVES if role.moves else action
                    said_NWB[...] = word_NB[:, None] == np.arange(self.words)[:, None]

    def _touch(self, part: slice) -> None:
        """Add the contact forces between agents and those entities seen that `part` selects."""
        near = np.nonzero(self._dist_NMB[:, part] < self._reach_NM1[:, part])
        if not near[0].size:
            return
        agent, other, copy = near[0], near[1] + part.start, near[2]
        # Entities at exactly the same position have no contact direction: mpe2 gives NaN, here there is no force.
        dist = np.maximum(self._dist_NMB[agent, other, copy], np.finfo(np.float64).tiny)
        overlap = CONTACT_MARGIN * np.logaddexp(0.0, (self._apart_NM1[agent, other, 0] - dist) / CONTACT_MARGIN)
        for component in range(2):
            # Contacts one by one, and products in mpe2's order, because stiff contacts amplify rounding errors.
            towards = self._rel_NM2B[agent, other, component, copy]
            force_NB = self._force_N2B[:, component]
            np.subtract.at(force_NB, (agent, copy), CONTACT_FORCE * towards / dist * overlap)

    def _look(self) -> None:
        # "clip" only spares NumPy a buffered copy: all indices are within bounds.
        np.take(self._pos_E2B, self._seen_NM, axis=0, out=self._rel_NM2B, mode="clip")
        self._rel_NM2B -= self._agents_N2B[:, None]
        if self._measures:
            np.copyto(self._dist_NMB, length(self._rel_NM2B))
        self._write_rows()

    def _set_limits(self, landmarks: tuple[Landmarks, ...]) -> None:
        """Compute who touches whom at which distance, and top speeds."""
        each = [role for role in self._roles for _ in role.agents]
        marks = [kind for kind in landmarks for _ in range(kind.count)]
        self._size_E = size_E = np.array([*(role.size for role in each), *(kind.size for kind in marks)])
        firm_E = np.array([*(role.collides for role in each), *(kind.collide for kind in marks)])
        self._measures = any(role.collides for role in each)
        touch_NM = firm_E[: len(each), None] & firm_E[self._seen_NM]
        self._apart_NM1 = (size_E[: len(each), None] + size_E[self._seen_NM])[:, :, None]
        # No distance is below −1: entities that pass through one another are never near.
        self._reach_NM1 = np.where(touch_NM[:, :, None], self._apart_NM1 + CONTACT_REACH, -1.0)
        # Other agents before obstacles, because mpe2 adds forces in the order of entities.
        parts = (slice(len(marks), touch_NM.shape[1]), slice(0, sum(kind.collide for kind in marks)))
        self._contacts = [part for part in parts if touch_NM[:, part].any()]
        top_N1 = np.array([role.top_speed for role in each])[:, None]
        self._top_N1 = top_N1 if np.isfinite(top_N1).any() else None

    def _spaces(self, roles: tuple[AgentRole, ...], options: ParticleOptions) -> EnvSpaces:
        classes = tuple(
            AgentClass(
                name=r.name,
                agents=r.agents,
                obs_size=r.obs_size,
                action=r.action(self.words, continuous=options.continuous_actions),
                entities=r.entities,
            )
            for r in roles
        )
        state_size = sum(len(c.agents) * c.obs_size for c in classes)
        return EnvSpaces(classes, state_size, options.max_cycles, rewards=self.rewards)

    def _role_rows(self) -> list[Rows]:
        """Views [N, O, B] of `_rows_SB`, one per role, to write observations to."""
        return [obs_NBO.transpose(0, 2, 1) for obs_NBO in self._frame.obs]

    def _view(self, rows_SB: Rows) -> Frame:
        obs, start = [], 0
        for agents in self.spaces.classes:
            stop = start + len(agents.agents) * agents.obs_size
            obs_NOB = rows_SB[start:stop].reshape(len(agents.agents), agents.obs_size, self.batch)
            obs.append(obs_NOB.transpose(0, 2, 1))
            start = stop
        return Frame(obs=tuple(obs), state=rows_SB.T)


def length(vectors_X2B: FloatArray64) -> FloatArray64:
    """Euclidean lengths [..., B] of plane vectors [..., 2, B]."""
    square = vectors_X2B * vectors_X2B
    return np.sqrt(square[..., 0, :] + square[..., 1, :])


def planes(rows_NOB: Rows, start: int, vectors: int) -> Rows:
    """The view [N, vectors, 2, B] of the plane vectors that stand in observations from feature `start` on."""
    agents, _, batch = rows_NOB.shape
    return rows_NOB[:, start : start + 2 * vectors].reshape(agents, vectors, 2, batch)
