"""Two games whose episodes are longer than the rounds of a fast job, as array operations; see `bench.carry`.

Shape suffixes as in `marless.envs.base`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.envs.base import (
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


class _Game:
    """One agent with two actions, whose state [B, O] of numbers is what it observes."""

    size: int
    longest: int

    def __init__(self, batch: int) -> None:
        agents = AgentClass("agent", ("agent_0",), self.size, Discrete(2))
        self.spaces = EnvSpaces((agents,), state_size=0, max_steps=self.longest)
        self.batch = batch
        self._cut_B = np.zeros(batch, np.bool_)

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._steps_B = np.zeros(self.batch, np.int64)
        self._cut_B[:] = False
        self._x_BO = self._begun()
        return self._frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        self._steps_B += 1
        late_B = self._steps_B == self.longest
        reward_B, over_B = self._move(actions[0][0], late_B)
        ended_B = over_B | late_B | self._cut_B
        final = self._frame()
        if ended_B.any():
            self._x_BO = np.where(ended_B[:, None], self._begun(), self._x_BO)
            self._steps_B[ended_B] = 0
        self._cut_B[:] = False
        return Transition(
            frame=self._frame(),
            final=final,
            rewards=(reward_B[None],),
            terminated=(over_B[None],),
            truncated=ended_B & ~over_B,
            ended=ended_B,
        )

    def truncate(self, chosen_B: BoolArray) -> None:
        self._cut_B[...] = chosen_B

    def save(self) -> Arrays:
        return {"x": self._x_BO.copy(), "steps": self._steps_B.copy(), "random": save_generator(self._rng)}

    def load(self, arrays: Arrays) -> Frame:
        self._x_BO = saved(arrays, "x", "float64", (self.batch, self.size)).copy()
        self._steps_B = saved(arrays, "steps", "int64", (self.batch,)).copy()
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        return self._frame()

    def close(self) -> None:
        pass

    def _frame(self) -> Frame:
        return Frame(obs=(self._x_BO.astype(np.float32)[None],))

    def _begun(self) -> NDArray[np.float64]:
        raise NotImplementedError

    def _move(self, action_B: ActionArray, late_B: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Change the state; returns rewards, and where a terminal state is reached."""
        raise NotImplementedError


class CartPole(_Game):
    """Balance a pole on a cart for up to 500 steps, 1 a step; equations, limits and start as in Gymnasium's
    CartPole-v1 (Barto, Sutton and Anderson 1983, with Euler's method).
    """

    size, longest = 4, 500

    def _begun(self) -> NDArray[np.float64]:
        return self._rng.uniform(-0.05, 0.05, (self.batch, 4))

    def _move(self, action_B: ActionArray, late_B: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        gravity, pole, total, half, force, tau = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
        x, speed, angle, turn = self._x_BO.T
        push = np.where(action_B == 1, force, -force)
        common = (push + pole * half * turn**2 * np.sin(angle)) / total
        spin = (gravity * np.sin(angle) - np.cos(angle) * common) / (
            half * (4.0 / 3.0 - pole * np.cos(angle) ** 2 / total)
        )
        pull = common - pole * half * spin * np.cos(angle) / total
        self._x_BO = np.stack([x + tau * speed, speed + tau * pull, angle + tau * turn, turn + tau * spin], axis=1)
        over_B = (np.abs(self._x_BO[:, 0]) > 2.4) | (np.abs(self._x_BO[:, 2]) > np.deg2rad(12))
        return np.ones(self.batch), over_B


class Chain(_Game):
    """120 steps along a chain: the action that equals a random cue moves on, the other stays.

    Only the last step pays: a quarter for each cell beyond the 60th, so 15 at best, and 0.55 on average for random
    actions. The agent sees its cell, the time and the cue.
    """

    size, longest = 3, 120

    def _begun(self) -> NDArray[np.float64]:
        return np.column_stack([np.zeros((self.batch, 2)), self._rng.integers(2, size=self.batch)])

    def _move(self, action_B: ActionArray, late_B: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        self._x_BO[:, 0] += (action_B == self._x_BO[:, 2]) / self.longest
        self._x_BO[:, 1] += 1 / self.longest
        self._x_BO[:, 2] = self._rng.integers(2, size=self.batch)
        prize_B = np.maximum(self._x_BO[:, 0] * self.longest - 60.0, 0.0) / 4.0
        return np.where(late_B, prize_B, 0.0), late_B
