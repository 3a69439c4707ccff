"""Small cooperative games in NumPy, which quickly show what an algorithm can represent and find.

In `game/matrix`, `game/two_step` and `game/target` the optimum is known. All three are fully observed and
deterministic, and give every agent the same reward. An agent observes the state and its own index (one-hot), so that
agents can share a policy. An episode is won if its return is the highest possible one (in `game/target`, if every
action is within the tolerance). Every episode ends by termination.

Shape suffixes: N agents, B environment copies, O = 4 numbers of a cart: position, speed, angle of the pole, its speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, shown, unknown_name
from marless.core.limits import MAX_AGENTS
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BoolArray,
    Box,
    Discrete,
    EnvSpaces,
    Frame,
    Transition,
    Truncatable,
    load_generator,
    save_generator,
    saved,
)

MOST_CHOICES = 128
PENALTY = "penalty"
"""Name of the payoff table that is made from the option `penalty`."""
Table = tuple[tuple[float, ...], ...]
PAYOFFS: Mapping[str, Table] = MappingProxyType(
    {
        "climbing": ((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0)),
        "coordination": ((10.0, 0.0), (0.0, 10.0)),
        "hidden": ((8.0, -30.0, -30.0), (-30.0, 4.0, 4.0), (-30.0, 4.0, 4.0)),
        "dominance": ((0.0, 2.0, 4.0), (1.0, 3.0, 5.0), (2.0, 4.0, 6.0)),
    }
)
"""Rewards [action of agent_0][action of agent_1] of the payoff tables.

- climbing: the best joint action is next to the worst ones (Claus & Boutilier 1998);
- coordination: two equal optima (Claus & Boutilier 1998);
- hidden: after the table of Son et al. (2019, §5.1): the penalties around the optimum are so large that the best fit of
  any team value that is monotone in the agents' values misses it;
- dominance: a sum of one term per agent, so that every value decomposition can represent it, and each agent has one
  best action whatever the other does.
"""
TWO_STEP: NDArray[np.float64] = np.array([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])
"""Rewards [state 2A or 2B][action of agent_0][action of agent_1] (Rashid et al. 2018, §5.1)."""


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """Options of `game/matrix`."""

    payoff: str | Sequence[Sequence[float]] = "climbing"
    """Name of a table (climbing, coordination, dominance, hidden, penalty), or a square table of numbers."""
    penalty: float = -100.0
    """Reward of the two miscoordinated joint actions of the payoff `penalty`; at most 0."""

    def __post_init__(self) -> None:
        if not _is_number(self.penalty) or self.penalty > 0:
            raise SpecError(f"penalty must be a number of at most 0, got {self.penalty!r}")
        self.table()

    def table(self) -> NDArray[np.float64]:
        """Rewards float64 [actions, actions]; raises SpecError for an unknown name or an invalid table."""
        if isinstance(self.payoff, str):
            if self.payoff == PENALTY:  # Claus & Boutilier (1998): two optima, and a safe action between them
                return np.array([[10.0, 0.0, self.penalty], [0.0, 2.0, 0.0], [self.penalty, 0.0, 10.0]])
            if self.payoff not in PAYOFFS:
                raise SpecError(unknown_name("payoff", self.payoff, [*PAYOFFS, PENALTY]))
            return np.array(PAYOFFS[self.payoff])
        rows = self.payoff if isinstance(self.payoff, Sequence) else ()
        square = all(isinstance(row, Sequence) and len(row) == len(rows) and all(map(_is_number, row)) for row in rows)
        if not 2 <= len(rows) <= MOST_CHOICES or not square:
            raise SpecError(
                f"payoff must be a name ({', '.join([*PAYOFFS, PENALTY])}) or a square table of at least 2 × 2 "
                f"and at most {MOST_CHOICES} × {MOST_CHOICES} numbers, got {shown(self.payoff)}"
            )
        return np.array(rows, np.float64)


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """Options of `game/target`."""

    targets: Sequence[float] = (0.5, -0.5)
    """The optimal action of each agent, one number per agent, within [-1, 1]."""
    tolerance: float = 0.1
    """An episode is won if every action is at most this far from its target."""

    def __post_init__(self) -> None:
        targets = self.targets if isinstance(self.targets, Sequence) else ()
        if not targets or not all(_is_number(each) and -1 <= each <= 1 for each in targets):
            raise SpecError(f"targets must be a list of numbers from -1 to 1, one an agent, got {shown(self.targets)}")
        if len(targets) > MAX_AGENTS:
            raise SpecError(f"targets: {len(targets)} agents; at most {MAX_AGENTS} are possible")
        if not _is_number(self.tolerance) or self.tolerance <= 0:
            raise SpecError(f"tolerance must be a number above 0, got {self.tolerance!r}")


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Options of a game that has none."""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


class Game(Truncatable, ABC):
    """Base of the games: observations, shared rewards, and episodes that terminate after `max_steps` env steps."""

    spaces: EnvSpaces
    batch: int

    def __init__(self, agents: int, action: Discrete | Box, *, states: int, steps: int, batch: int) -> None:
        names = tuple(f"agent_{i}" for i in range(agents))
        self.spaces = EnvSpaces(
            classes=(AgentClass("agent", names, states + agents, action),),
            state_size=states,
            max_steps=steps,
            rewards="cooperative",
            wins=True,
            team_reward=True,
        )
        self.batch = batch
        # Two frames, because the last one of an episode must stay valid when the next episode starts.
        obs_NBO = np.zeros((agents, batch, states + agents), np.float32)
        obs_NBO[..., states:] = np.eye(agents)[:, None]
        self._now, self._last = (
            Frame(obs=(obs_NBO.copy(),), state=np.zeros((batch, states), np.float32)) for _ in range(2)
        )
        self._steps_B = np.zeros(batch, np.int64)
        self._state_B = np.zeros(batch, np.intp)
        self._cut_B = np.zeros(batch, np.bool_)
        """The copies whose present episodes are truncated after the next step."""

    def reset(self, seed: int) -> Frame:
        """Start an episode in every copy; nothing is random."""
        self._cut_B[:] = False
        return self._start(np.ones(self.batch, np.bool_))

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Let all agents act once."""
        reward_B, won_B, self._state_B = self._outcome(actions[0])
        self._steps_B += 1
        terminated_B = self._steps_B == self.spaces.max_steps
        truncated_B = self._cut_B & ~terminated_B
        ended_B = terminated_B | truncated_B
        if ended_B.any():
            self._cut_B[:] = False
            final = self._show(self._last, terminated_B)
            frame = self._start(ended_B)
        else:
            frame = final = self._show(self._now)
        shape = (len(self.spaces.agents), self.batch)
        return Transition(
            frame=frame,
            final=final,
            rewards=(np.broadcast_to(reward_B, shape),),
            team_reward=reward_B,
            terminated=(np.repeat(terminated_B[None], shape[0], axis=0),),
            truncated=truncated_B,
            ended=ended_B,
            won=won_B,
        )

    def save(self) -> Arrays:
        return {"steps": self._steps_B.copy(), "state": self._state_B.astype(np.int64)}

    def load(self, arrays: Arrays) -> Frame:
        found = {"steps": self.spaces.max_steps or 1, "state": self.spaces.state_size}
        loaded = {name: saved(arrays, name, "int64", (self.batch,)) for name in found}
        for name, most in found.items():
            if not ((loaded[name] >= 0) & (loaded[name] < most)).all():
                raise CorruptError(f"saved environment: {name} holds numbers outside 0 to {most - 1}")
        self._steps_B, self._state_B = loaded["steps"].copy(), loaded["state"].astype(np.intp)
        self._cut_B[:] = False
        return self._show(self._now)

    @abstractmethod
    def _outcome(self, action: ActionArray) -> tuple[NDArray[np.float64], BoolArray, NDArray[np.intp]]:
        """Rewards [B], whether an episode ends now and is won [B], and the next states [B] (any where it is over)."""

    def _start(self, copies_B: BoolArray) -> Frame:
        """Start an episode in these copies."""
        self._steps_B[copies_B] = 0
        self._state_B[copies_B] = 0
        return self._show(self._now)

    def _show(self, frame: Frame, over_B: BoolArray | None = None) -> Frame:
        """Write the present states into a frame, one-hot; zeros where an episode is over."""
        states = self.spaces.state_size
        shown_BS = np.eye(states, dtype=np.float32)[self._state_B]
        if over_B is not None:
            shown_BS[over_B] = 0
        assert frame.state is not None
        frame.state[...] = shown_BS
        frame.obs[0][..., :states] = shown_BS
        return frame


class Matrix(Game):
    """A one-shot matrix game: two agents act once, at the same time, and get the reward of a table."""

    def __init__(self, options: MatrixOptions, batch: int) -> None:
        self._table = options.table()
        super().__init__(2, Discrete(len(self._table)), states=1, steps=1, batch=batch)

    def _outcome(self, action: ActionArray) -> tuple[NDArray[np.float64], BoolArray, NDArray[np.intp]]:
        reward_B = self._table[action[0], action[1]]
        return reward_B, reward_B == self._table.max(), self._state_B


class TwoStep(Game):
    """The two-step game of Rashid et al. (2018, §5.1): agent_0's first action chooses the table of the second step.

    State 2A gives 7 for all actions; state 2B gives 8 if both agents choose 1, and less otherwise. A learner whose
    team value is a sum of its agents' values (VDN) underestimates 2B and ends with 7.
    """

    def __init__(self, options: NoOptions, batch: int) -> None:
        super().__init__(2, Discrete(2), states=3, steps=2, batch=batch)

    def _outcome(self, action: ActionArray) -> tuple[NDArray[np.float64], BoolArray, NDArray[np.intp]]:
        first_B = self._state_B == 0
        # In the first state the index is −1, and what it finds is not chosen.
        reward_B = np.where(first_B, 0.0, TWO_STEP[self._state_B - 1, action[0], action[1]])
        next_B = np.where(first_B, 1 + action[0], self._state_B).astype(np.intp)
        return reward_B, reward_B == TWO_STEP.max(), next_B


class Target(Game):
    """A one-shot continuous game: each agent chooses a number in [-1, 1]; the reward of all is 1 minus the mean squared
    distance to the targets.
    """

    def __init__(self, options: TargetOptions, batch: int) -> None:
        self._target_N1 = np.array(options.targets, np.float64)[:, None]
        self._tolerance = options.tolerance
        super().__init__(len(options.targets), Box((-1.0,), (1.0,)), states=1, steps=1, batch=batch)

    def _outcome(self, action: ActionArray) -> tuple[NDArray[np.float64], BoolArray, NDArray[np.intp]]:
        miss_NB = np.abs(np.clip(action[..., 0], -1.0, 1.0) - self._target_N1)
        return 1.0 - np.square(miss_NB).mean(axis=0), (miss_NB <= self._tolerance).all(axis=0), self._state_B


LONGEST = 500
"""Env steps of an episode in which nothing falls."""
_GRAVITY, _POLE_MASS, _MASS, _HALF_POLE, _FORCE, _STEP_S = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
_TRACK, _ANGLE = 2.4, np.deg2rad(12)


@dataclass(frozen=True, kw_only=True)
class CartPoleOptions:
    """Options of `game/cartpole`."""

    agents: int = 1
    """Carts, each with an agent of its own."""

    def __post_init__(self) -> None:
        if not isinstance(self.agents, int) or isinstance(self.agents, bool) or not 1 <= self.agents <= MAX_AGENTS:
            raise SpecError(f"agents must be a whole number from 1 to {MAX_AGENTS}, got {self.agents!r}")


class CartPole(Truncatable):
    """B copies of a team of carts. Action 0 pushes a cart to the left, 1 to the right; each step pays 1 to every agent.

    The global state is what all agents observe, one after another.
    """

    def __init__(self, options: CartPoleOptions, batch: int) -> None:
        names = tuple(f"agent_{i}" for i in range(options.agents))
        self.spaces = EnvSpaces(
            (AgentClass("agent", names, 4, Discrete(2)),),
            state_size=4 * options.agents,
            max_steps=LONGEST,
            rewards="cooperative",
        )
        self.batch = batch
        self._cut_B = np.zeros(batch, np.bool_)

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._steps_B = np.zeros(self.batch, np.int64)
        self._cut_B[:] = False
        self._carts_NBO = self._begun()
        return self._frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        self._carts_NBO = _moved(self._carts_NBO, actions[0])
        self._steps_B += 1
        # The pole of some cart is too far from upright, or the cart has left its track.
        over_B: BoolArray = np.any(np.abs(self._carts_NBO[..., ::2]) > (_TRACK, _ANGLE), axis=(0, 2))
        truncated_B = ((self._steps_B == LONGEST) | self._cut_B) & ~over_B
        ended_B = over_B | truncated_B
        self._cut_B[:] = False
        final = frame = self._frame()
        if ended_B.any():
            self._carts_NBO = np.where(ended_B[:, None], self._begun(), self._carts_NBO)
            self._steps_B[ended_B] = 0
            frame = self._frame()
        shape = (len(self.spaces.agents), self.batch)
        return Transition(
            frame=frame,
            final=final,
            rewards=(np.ones(shape, np.float32),),
            terminated=(np.repeat(over_B[None], shape[0], axis=0),),
            truncated=truncated_B,
            ended=ended_B,
        )

    def save(self) -> Arrays:
        arrays = {"carts": self._carts_NBO.copy(), "steps": self._steps_B.copy()}
        return {**arrays, "random": save_generator(self._rng)}

    def load(self, arrays: Arrays) -> Frame:
        shape = (len(self.spaces.agents), self.batch, 4)
        self._carts_NBO = saved(arrays, "carts", "float64", shape).copy()
        self._steps_B = saved(arrays, "steps", "int64", (self.batch,)).copy()
        if not ((self._steps_B >= 0) & (self._steps_B < LONGEST)).all():
            raise CorruptError(f"saved environment: steps holds numbers outside 0 to {LONGEST - 1}")
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        self._cut_B[:] = False
        return self._frame()

    def _begun(self) -> NDArray[np.float64]:
        return self._rng.uniform(-0.05, 0.05, (len(self.spaces.agents), self.batch, 4))

    def _frame(self) -> Frame:
        # Only what is observed is rounded: the carts themselves move in float64, as Gymnasium's do.
        obs_NBO = self._carts_NBO.astype(np.float32)
        return Frame(obs=(obs_NBO,), state=obs_NBO.swapaxes(0, 1).reshape(self.batch, -1))


def _moved(carts_NBO: NDArray[np.float64], action_NB: ActionArray) -> NDArray[np.float64]:
    """All carts 0.02 s later."""
    x, speed, angle, turn = np.moveaxis(carts_NBO, -1, 0)
    sine, cosine = np.sin(angle), np.cos(angle)
    push = np.where(action_NB == 1, _FORCE, -_FORCE)
    common = (push + _POLE_MASS * _HALF_POLE * turn**2 * sine) / _MASS
    spin = (_GRAVITY * sine - cosine * common) / (_HALF_POLE * (4.0 / 3.0 - _POLE_MASS * cosine**2 / _MASS))
    pull = common - _POLE_MASS * _HALF_POLE * spin * cosine / _MASS
    return np.stack(
        [x + _STEP_S * speed, speed + _STEP_S * pull, angle + _STEP_S * turn, turn + _STEP_S * spin], axis=-1
    )
