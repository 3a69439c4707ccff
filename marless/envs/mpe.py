"""The multi-particle games `simple_spread` and `simple_adversary`, in NumPy, for any number of agents.

Rules and numbers are those of mpe2 1.1.1 (`simple_spread_v3`, `simple_adversary_v3`, full observability);
with one copy, `reset(seed)` and every step equal mpe2's to rounding. Entities live in an unbounded plane.
One env step is 0.1 time units: positions move by the old velocities, then velocities are damped and pushed,
p ← p + 0.1·v and v ← 0.75·v + 0.1·(u + F), where u is the agents' own force (5 per unit of action) and F
the contact force.

Work arrays are entity-major with the copies last (E entities, M entities seen, 2 plane components, B copies), so that
each array operation runs over contiguous copies. Observations are written once, feature-major; the observations of an
agent class and the global state are views of those rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from marless.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    Box,
    Discrete,
    EnvSpaces,
    Frame,
    Scene,
    Transition,
    load_generator,
    save_generator,
    saved,
)
from marless.errors import CorruptError, SpecError, shown
from marless.limits import MAX_AGENTS

DT = 0.1
DAMPING = 0.25
FORCE = 5.0
MAX_CYCLES = 1_000_000
CONTACT_DISTANCE = 0.30
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 1e-3
CONTACT_REACH = CONTACT_DISTANCE + 40 * CONTACT_MARGIN
"""Distance beyond which the contact force is below 1e-18 and left out."""

PUSH_2A = FORCE * np.array([[0, -1, 1, 0, 0], [0, 0, 0, -1, 1]], dtype=np.float64)
"""Force of each discrete action: nothing, left, right, down, up."""

FloatArray64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ParticleOptions:
    """Options of both games."""

    agents: int
    """Number of (good) agents; mpe2's `N`."""
    landmarks: int | None = None
    """Number of landmarks; None: as many as agents, which is the only choice in mpe2."""
    max_cycles: int = 25
    """Env steps after which an episode is truncated."""
    continuous_actions: bool = False
    """False: 5 actions (nothing, left, right, down, up). True: 5 numbers in [0, 1], the strength of each."""

    def __post_init__(self) -> None:
        for name in ("agents", "landmarks", "max_cycles"):
            value = getattr(self, name)
            if name == "landmarks" and value is None:
                continue
            most = MAX_CYCLES if name == "max_cycles" else MAX_AGENTS
            if not _is_count(value):
                raise SpecError(f"{name} must be a whole number of at least 1, got {shown(value)}")
            if value > most:
                raise SpecError(f"{name} may be {most:,} at most, got {shown(value)}")
        if not isinstance(self.continuous_actions, bool):
            raise SpecError(f"continuous_actions must be true or false, got {self.continuous_actions!r}")

    @property
    def marks(self) -> int:
        """The number of landmarks."""
        return self.agents if self.landmarks is None else self.landmarks


@dataclass(frozen=True, kw_only=True)
class SpreadOptions(ParticleOptions):
    """Options of `simple_spread`."""

    agents: int = 3
    local_ratio: float = 0.5
    """Weight λ of an agent's own collisions in its reward; the team's share is 1 − λ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ratio = self.local_ratio
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
            raise SpecError(f"local_ratio must be a number from 0 to 1, got {ratio!r}")


@dataclass(frozen=True, kw_only=True)
class AdversaryOptions(ParticleOptions):
    """Options of `simple_adversary`; `agents` does not count the one adversary."""

    agents: int = 2


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class ParticleEnv(ABC):
    """Base of the games: motion, relative positions, and episodes that end at the same step in all copies."""

    spaces: EnvSpaces
    batch: int
    rewards: ClassVar[Literal["cooperative", "competitive"]]
    """See `EnvSpaces`."""

    def __init__(self, classes: tuple[AgentClass, ...], options: ParticleOptions, batch: int, dtype: DTypeLike) -> None:
        self.spaces = EnvSpaces(
            classes=classes,
            state_size=sum(len(c.agents) * c.obs_size for c in classes),
            max_steps=options.max_cycles,
            rewards=self.rewards,
        )
        self.batch = batch
        movers, marks = len(self.spaces.agents), options.marks
        self._marks = marks
        self._seen_NM = _seen(movers, marks)
        self._pos_E2B = np.zeros((movers + marks, 2, batch))
        self._agents_N2B = self._pos_E2B[:movers]
        self._vel_N2B = np.zeros((movers, 2, batch))
        self._force_N2B = np.zeros((movers, 2, batch))
        self._rel_NM2B = np.zeros((*self._seen_NM.shape, 2, batch))
        self._rewards_NB = np.zeros((movers, batch))
        self._rows_SB = np.zeros((self.spaces.state_size, batch), dtype)
        self._last_rows_SB = np.zeros_like(self._rows_SB)
        self._frame, self._last_frame = self._view(self._rows_SB), self._view(self._last_rows_SB)
        self._forces, self._rewards = self._by_class(self._force_N2B), self._by_class(self._rewards_NB)
        self._last_scene: Scene | None = None
        self._rng = np.random.default_rng(0)
        self._steps = 0

    def reset(self, seed: int) -> Frame:
        """Start an episode in every copy; a single copy starts where mpe2's `reset(seed=seed)` does."""
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._start()
        return self._frame

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Move every agent once; all copies are truncated at the same step, after `max_cycles` env steps."""
        self._move(actions)
        self._look()
        self._score()
        self._steps += 1
        ended = np.full(self.batch, self._steps == self.spaces.max_steps)
        final = self._frame
        if ended[0]:
            self._last_scene = self.picture()
            np.copyto(self._last_rows_SB, self._rows_SB)
            final = self._last_frame
            self._start()
        return Transition(
            frame=self._frame,
            final=final,
            rewards=self._rewards,
            terminated=tuple(np.zeros((len(c.agents), self.batch), np.bool_) for c in self.spaces.classes),
            truncated=ended,
            ended=ended,
        )

    def save(self) -> Arrays:
        """See `marless.envs.base.Saved`."""
        state = {name: array.copy() for name, array in self._state().items()}
        return {**state, "random": save_generator(self._rng), "steps": np.array([self._steps], np.int64)}

    def load(self, arrays: Arrays) -> Frame:
        """See `marless.envs.base.Saved`."""
        loaded = {name: saved(arrays, name, "float64", array.shape) for name, array in self._state().items()}
        (steps,) = saved(arrays, "steps", "int64", (1,)).tolist()
        if not 0 <= steps < (self.spaces.max_steps or MAX_CYCLES):
            raise CorruptError(f"saved environment: {steps} steps into an episode of {self.spaces.max_steps}")
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        self._steps = steps
        for name, array in self._state().items():
            array[...] = loaded[name]
        self._look()
        return self._frame

    def picture(self, *, ended: bool = False) -> Scene:
        """See `marless.envs.base.Pictured`."""
        if ended and self._last_scene:
            return self._last_scene
        agents_N2, marks_M2 = np.split(self._pos_E2B[:, :, 0].copy(), [len(self._agents_N2B)])
        return Scene(agents_N2, marks_M2, self._goal())

    def close(self) -> None:  # noqa: B027  # not a hook: no game holds anything to release
        """Do nothing: there are no resources to release."""

    @abstractmethod
    def _write_rows(self) -> None:
        """Write all observations, one after another, into `_rows_SB`."""

    @abstractmethod
    def _score(self) -> None:
        """Write the rewards of the present positions into `_rewards_NB`."""

    def _state(self) -> dict[str, FloatArray64]:
        """The arrays that later steps depend on; all others are computed from them."""
        return {"position": self._pos_E2B, "velocity": self._vel_N2B}

    def _goal(self) -> FloatArray64 | None:
        """Position [2] of the goal in copy 0; None if the game has no goal."""
        return None

    def _place(self) -> None:
        draws_BE2 = self._rng.uniform(-1.0, 1.0, (self.batch, len(self._pos_E2B), 2))
        self._pos_E2B[...] = draws_BE2.transpose(1, 2, 0)

    def _start(self) -> None:
        self._steps = 0
        self._vel_N2B.fill(0.0)
        self._place()
        self._look()

    def _move(self, actions: tuple[ActionArray, ...]) -> None:
        self._push(actions)
        self._agents_N2B += DT * self._vel_N2B
        self._vel_N2B *= 1.0 - DAMPING
        self._vel_N2B += DT * self._force_N2B

    def _push(self, actions: tuple[ActionArray, ...]) -> None:
        for force_N2B, action, agents in zip(self._forces, actions, self.spaces.classes, strict=True):
            force_N2B[...] = _force(action, agents.action)

    def _look(self) -> None:
        np.subtract(self._pos_E2B[self._seen_NM], self._agents_N2B[:, None], out=self._rel_NM2B)
        self._write_rows()

    def _by_class(self, array: FloatArray64) -> tuple[FloatArray64, ...]:
        stops = np.cumsum([len(c.agents) for c in self.spaces.classes])[:-1]
        return tuple(np.split(array, stops))

    def _view(self, rows_SB: NDArray[Any]) -> Frame:  # Any: float32, or float64 for comparison
        obs, start = [], 0
        for agents in self.spaces.classes:
            stop = start + len(agents.agents) * agents.obs_size
            obs_NOB = rows_SB[start:stop].reshape(len(agents.agents), agents.obs_size, self.batch)
            obs.append(obs_NOB.transpose(0, 2, 1))
            start = stop
        return Frame(obs=tuple(obs), state=rows_SB.T)


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
        agents = tuple(f"agent_{i}" for i in range(n))
        agent_class = AgentClass("agent", agents, 4 + 2 * marks + 4 * (n - 1), _action(options))
        super().__init__((agent_class,), options, batch, dtype)
        self._local_ratio = options.local_ratio
        self._dist_NMB = np.zeros((*self._seen_NM.shape, batch))
        rows = self._rows_SB.reshape(n, agent_class.obs_size // 2, 2, batch)
        self._vel_rows, self._pos_rows = rows[:, 0], rows[:, 1]
        self._rel_rows = rows[:, 2 : 2 + marks + n - 1]

    def _write_rows(self) -> None:
        self._vel_rows[...] = self._vel_N2B
        self._pos_rows[...] = self._agents_N2B
        self._rel_rows[...] = self._rel_NM2B
        square = self._rel_NM2B * self._rel_NM2B
        np.sqrt(square[:, :, 0] + square[:, :, 1], out=self._dist_NMB)

    def _push(self, actions: tuple[ActionArray, ...]) -> None:
        super()._push(actions)
        near = np.nonzero(self._dist_NMB[:, self._marks :] < CONTACT_REACH)
        if not near[0].size:
            return
        agent, other, copy = near
        # Agents at exactly the same position have no contact direction: mpe2 gives NaN, here there is no force.
        dist = np.maximum(self._dist_NMB[agent, self._marks + other, copy], np.finfo(np.float64).tiny)
        overlap = CONTACT_MARGIN * np.logaddexp(0.0, (CONTACT_DISTANCE - dist) / CONTACT_MARGIN)
        for component in range(2):
            # Contacts one by one, and products in mpe2's order, because stiff contacts amplify rounding errors.
            towards = self._rel_NM2B[agent, self._marks + other, component, copy]
            force_NB = self._force_N2B[:, component]
            np.subtract.at(force_NB, (agent, copy), CONTACT_FORCE * towards / dist * overlap)

    def _score(self) -> None:
        team_B = -self._dist_NMB[:, : self._marks].min(axis=0).sum(axis=0)
        bumps_NMB = self._dist_NMB[:, self._marks :] < CONTACT_DISTANCE
        np.add.reduce(bumps_NMB, axis=1, dtype=np.float64, out=self._rewards_NB)
        self._rewards_NB *= -self._local_ratio
        self._rewards_NB += (1.0 - self._local_ratio) * team_B


class SimpleAdversary(ParticleEnv):
    """Competitive: one adversary looks for the goal, which N good agents know; agents pass through one another.

    The goal is one of the landmarks. Reward: the adversary's is −d(adversary, goal); every good agent's is
    d(adversary, goal) − the nearest good agent's distance. Observation: the goal (good agents only), then
    landmarks, then other agents in order, all relative to the observer.
    """

    rewards = "competitive"

    def __init__(self, options: AdversaryOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        n, seen = options.agents, 2 * (options.marks + options.agents)
        good = tuple(f"agent_{i}" for i in range(n))
        classes = (
            AgentClass("adversary", ("adversary_0",), seen, _action(options)),
            AgentClass("agent", good, seen + 2, _action(options)),
        )
        super().__init__(classes, options, batch, dtype)
        self._goal_2B = np.zeros((2, batch))
        self._to_goal_N2B = np.zeros((n + 1, 2, batch))
        self._adversary_rows = self._rows_SB[:seen].reshape(seen // 2, 2, batch)
        self._good_rows = self._rows_SB[seen:].reshape(n, 1 + seen // 2, 2, batch)

    def _place(self) -> None:
        goal_B = self._rng.integers(self._marks, size=self.batch)
        super()._place()
        marks_M2B = self._pos_E2B[len(self._agents_N2B) :]
        self._goal_2B[...] = marks_M2B[goal_B, :, np.arange(self.batch)].T

    def _state(self) -> dict[str, FloatArray64]:
        return super()._state() | {"goal": self._goal_2B}

    def _goal(self) -> FloatArray64:
        return self._goal_2B[:, 0].copy()

    def _write_rows(self) -> None:
        np.subtract(self._goal_2B, self._agents_N2B, out=self._to_goal_N2B)
        self._adversary_rows[...] = self._rel_NM2B[0]
        self._good_rows[:, 0] = self._to_goal_N2B[1:]
        self._good_rows[:, 1:] = self._rel_NM2B[1:]

    def _score(self) -> None:
        square = self._to_goal_N2B * self._to_goal_N2B
        dist_NB = np.sqrt(square[:, 0] + square[:, 1])
        self._rewards_NB[0] = -dist_NB[0]
        self._rewards_NB[1:] = dist_NB[0] - dist_NB[1:].min(axis=0)


def _seen(movers: int, marks: int) -> NDArray[np.intp]:
    """[agents, M]: for each agent, the indices of the entities it sees: every landmark, then every other agent."""
    landmarks = range(movers, movers + marks)
    return np.array([[*landmarks, *(j for j in range(movers) if j != i)] for i in range(movers)], np.intp)


def _action(options: ParticleOptions) -> Discrete | Box:
    return Box(low=(0.0,) * 5, high=(1.0,) * 5) if options.continuous_actions else Discrete(5)


def _force(action: ActionArray, space: Discrete | Box) -> FloatArray64:
    """The agents' own force [N, 2, B]."""
    if isinstance(space, Discrete):
        return PUSH_2A[:, action].transpose(1, 0, 2)
    push_NB5 = np.clip(action, 0.0, 1.0)
    return FORCE * np.stack(
        (push_NB5[..., 2] - push_NB5[..., 1], push_NB5[..., 4] - push_NB5[..., 3]), axis=1, dtype=np.float64
    )
