"""Carts that each balance a pole, as array operations: episodes of up to 500 steps, alone or as a team.

A cart and its pole follow the equations of Barto, Sutton and Anderson (1983) with the numbers, the Euler steps, the
limits and the initial states of Gymnasium's CartPole-v1. In a team every agent has a cart of its own and sees only that
one. The episode is over for all as soon as one pole falls or one cart leaves its track, so each depends on all others.

Shape suffixes: N agents, B environment copies, O = 4 numbers of a cart: position, speed, angle of the pole, its speed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError
from marless.core.limits import MAX_AGENTS
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BoolArray,
    Discrete,
    EnvSpaces,
    Frame,
    Transition,
    load_generator,
    save_generator,
    saved,
)

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


class CartPole:
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
        over_B: BoolArray = np.any(_fallen(self._carts_NBO), axis=0)
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

    def truncate(self, chosen_B: BoolArray) -> None:
        self._cut_B[...] = chosen_B

    def save(self) -> Arrays:
        return {
            "carts": self._carts_NBO.copy(),
            "steps": self._steps_B.copy(),
            "random": save_generator(self._rng),
        }

    def load(self, arrays: Arrays) -> Frame:
        shape = (len(self.spaces.agents), self.batch, 4)
        self._carts_NBO = saved(arrays, "carts", "float64", shape).copy()
        self._steps_B = saved(arrays, "steps", "int64", (self.batch,)).copy()
        if not ((self._steps_B >= 0) & (self._steps_B < LONGEST)).all():
            raise CorruptError(f"saved environment: steps holds numbers outside 0 to {LONGEST - 1}")
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        self._cut_B[:] = False
        return self._frame()

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

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


def _fallen(carts_NBO: NDArray[np.float64]) -> BoolArray:
    """bool [N, B]: the pole is too far from upright, or the cart has left its track."""
    fallen_NB: BoolArray = np.any(np.abs(carts_NBO[..., ::2]) > (_TRACK, _ANGLE), axis=-1)
    return fallen_NB
