"""Small cooperative games with a known optimum, in NumPy: they quickly show what an algorithm can represent and find.

All are fully observed and deterministic, and give every agent the same reward. An agent observes the state and its own
index (one-hot), so that agents can share a policy. An episode is won if its return is the highest possible one (in
`game/target`, if every action is within the tolerance). Every episode ends by termination.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from marless.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BoolArray,
    Box,
    Discrete,
    EnvSpaces,
    Frame,
    Transition,
    saved,
)
from marless.errors import CorruptError, SpecError, shown, unknown_name
from marless.limits import MAX_AGENTS

Table = tuple[tuple[float, ...], ...]

MOST_CHOICES = 128
PENALTY = "penalty"
"""Name of the payoff table that is made from the option `penalty`."""

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


class Game(ABC):
    """Base of the games: observations, shared rewards, and episodes that end at the same step in all copies."""

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
        self._now, self._last = (self._blank() for _ in range(2))
        self._step = 0
        self._state_B = np.zeros(batch, np.intp)

    def reset(self, seed: int) -> Frame:
        """Start an episode in every copy; nothing is random."""
        return self._start()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Let all agents act once; all copies end at the same step, after `max_steps` env steps."""
        reward_B, won_B, state_B = self._outcome(actions[0])
        self._step += 1
        over = self._step == self.spaces.max_steps
        final = self._show(self._last if over else self._now, state_B)
        if state_B is not None:
            self._state_B = state_B
        shape = (len(self.spaces.agents), self.batch)
        return Transition(
            frame=self._start() if over else final,
            final=final,
            rewards=(np.broadcast_to(reward_B, shape),),
            team_reward=reward_B,
            terminated=(np.full(shape, over),),
            truncated=np.zeros(self.batch, np.bool_),
            ended=np.full(self.batch, over),
            won=won_B,
        )

    def close(self) -> None:  # noqa: B027  # not a hook: no game holds anything to release
        """Do nothing: there are no resources to release."""

    def save(self) -> Arrays:
        """See `marless.envs.base.Saved`."""
        return {"steps": np.array([self._step], np.int64), "state": self._state_B.astype(np.int64)}

    def load(self, arrays: Arrays) -> Frame:
        """See `marless.envs.base.Saved`."""
        (step,) = saved(arrays, "steps", "int64", (1,)).tolist()
        state_B = saved(arrays, "state", "int64", (self.batch,))
        if not (
            0 <= step < (self.spaces.max_steps or 1) and ((state_B >= 0) & (state_B < self.spaces.state_size)).all()
        ):
            raise CorruptError("saved environment: its steps or states are none of this game")
        self._step, self._state_B = step, state_B.astype(np.intp)
        return self._show(self._now, self._state_B)

    @abstractmethod
    def _outcome(self, action: ActionArray) -> tuple[NDArray[np.float64], BoolArray, NDArray[np.intp] | None]:
        """Rewards [B], whether an episode ends now and is won [B], and the next states [B] (None at the end)."""

    def _start(self) -> Frame:
        self._step = 0
        self._state_B = np.zeros(self.batch, np.intp)
        return self._show(self._now, self._state_B)

    def _blank(self) -> Frame:
        agents, states = len(self.spaces.agents), self.spaces.state_size
        obs_NBO = np.zeros((agents, self.batch, states + agents), np.float32)
        obs_NBO[..., states:] = np.eye(agents)[:, None]
        return Frame(obs=(obs_NBO,), state=np.zeros((self.batch, states), np.float32))

    def _show(self, frame: Frame, state_B: NDArray[np.intp] | None) -> Frame:
        """Write the state into a frame, one-hot; zeros in a terminal state."""
        states = self.spaces.state_size
        shown_BS = 0.0 if state_B is None else np.eye(states, dtype=np.float32)[state_B]
        assert frame.state is not None
        frame.state[...] = shown_BS
        frame.obs[0][..., :states] = shown_BS
        return frame


class Matrix(Game):
    """A one-shot matrix game: two agents act once, at the same time, and get the reward of a table."""

    def __init__(self, options: MatrixOptions, batch: int) -> None:
        self._table = options.table()
        super().__init__(2, Discrete(len(self._table)), states=1, steps=1, batch=batch)

    def _outcome(self, action: ActionArray) -> tuple[NDArray[np.float64], BoolArray, NDArray[np.intp] | None]:
        reward_B = self._table[action[0], action[1]]
        return reward_B, reward_B == self._table.max(), None


class TwoStep(Game):
    """The two-step game of Rashid et al. (2018, §5.1): agent_0's first action chooses the table of the second step.

    State 2A gives 7 for all actions; state 2B gives 8 if both agents choose 1, and less otherwise. A learner whose
    team value is a sum of its agents' values (VDN) underestimates 2B and ends with 7.
    """

    def __init__(self, options: NoOptions, batch: int) -> None:
        super().__init__(2, Discrete(2), states=3, steps=2, batch=batch)

    def _outcome(self, action: ActionArray) -> tuple[NDArray[np.float64], BoolArray, NDArray[np.intp] | None]:
        if self._step == 0:
            return np.zeros(self.batch), np.zeros(self.batch, np.bool_), 1 + action[0].astype(np.intp)
        reward_B = TWO_STEP[self._state_B - 1, action[0], action[1]]
        return reward_B, reward_B == TWO_STEP.max(), None


class Target(Game):
    """A one-shot continuous game: each agent chooses a number in [-1, 1]; the reward of all is 1 minus the mean squared
    distance to the targets.
    """

    def __init__(self, options: TargetOptions, batch: int) -> None:
        self._target_N1 = np.array(options.targets, np.float64)[:, None]
        self._tolerance = options.tolerance
        super().__init__(len(options.targets), Box((-1.0,), (1.0,)), states=1, steps=1, batch=batch)

    def _outcome(self, action: ActionArray) -> tuple[NDArray[np.float64], BoolArray, NDArray[np.intp] | None]:
        miss_NB = np.abs(np.clip(action[..., 0], -1.0, 1.0) - self._target_N1)
        return 1.0 - np.square(miss_NB).mean(axis=0), (miss_NB <= self._tolerance).all(axis=0), None
