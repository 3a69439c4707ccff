"""The chain: a game whose only prize is at the end of an episode that is longer than a fast job's rounds.

See `bench.carry`. Shape suffixes as in `marless.learning.envs.base`.
"""

from __future__ import annotations

import numpy as np

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

STEPS = 120


class Chain:
    """120 steps along a chain: the action that equals a random cue moves on, the other stays.

    Only the last step pays: a quarter for each cell beyond the 60th, so 15 at best, and 0.55 on average for random
    actions. The agent sees its cell, the time and the cue, which are x [B, 3].
    """

    def __init__(self, batch: int) -> None:
        agents = AgentClass("agent", ("agent_0",), 3, Discrete(2))
        self.spaces = EnvSpaces((agents,), state_size=0, max_steps=STEPS)
        self.batch = batch
        self._cut_B = np.zeros(batch, np.bool_)

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._steps_B = np.zeros(self.batch, np.int64)
        self._cut_B[:] = False
        self._x_BO = np.zeros((self.batch, 3))
        self._x_BO[:, 2] = self._cues()
        return self._frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        self._steps_B += 1
        self._x_BO[:, 0] += (actions[0][0] == self._x_BO[:, 2]) / STEPS
        self._x_BO[:, 1] += 1 / STEPS
        self._x_BO[:, 2] = self._cues()
        late_B = self._steps_B == STEPS
        reward_B = np.where(late_B, np.maximum(self._x_BO[:, 0] * STEPS - 60.0, 0.0) / 4.0, 0.0)
        ended_B = late_B | self._cut_B
        final = self._frame()
        if ended_B.any():
            self._x_BO[ended_B, :2] = 0.0
            self._steps_B[ended_B] = 0
        self._cut_B[:] = False
        return Transition(
            frame=self._frame(),
            final=final,
            rewards=(reward_B[None],),
            terminated=(np.zeros((1, self.batch), np.bool_),),
            truncated=ended_B,
            ended=ended_B,
        )

    def truncate(self, chosen_B: BoolArray) -> None:
        self._cut_B[...] = chosen_B

    def save(self) -> Arrays:
        return {"x": self._x_BO.copy(), "steps": self._steps_B.copy(), "random": save_generator(self._rng)}

    def load(self, arrays: Arrays) -> Frame:
        self._x_BO = saved(arrays, "x", "float64", (self.batch, 3)).copy()
        self._steps_B = saved(arrays, "steps", "int64", (self.batch,)).copy()
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        return self._frame()

    def close(self) -> None:
        pass

    def _frame(self) -> Frame:
        return Frame(obs=(self._x_BO.astype(np.float32)[None],))

    def _cues(self) -> np.ndarray:
        return self._rng.integers(2, size=self.batch)
