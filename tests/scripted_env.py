"""A tiny environment whose every number is known beforehand, and which reuses its buffers as the protocol allows."""

from __future__ import annotations

import numpy as np

from marless.learning.envs.base import ActionArray, AgentClass, Discrete, EnvSpaces, Frame, Transition

LIMIT = 3
NEVER = 99
LAST_STEP_BN = np.array([[NEVER, NEVER], [1, 0]])
"""At which of its episode's steps (from 0) an agent terminates: in copy 1, b at the first and a at the second."""


class ScriptedEnv:
    """Two copies, agents a and b. Copy 0 is truncated after 3 steps; copy 1 ends when both have terminated.

    Observation [episode, step, agent + 1]; state [copy + 1, episode, step]; reward 10·(agent + 1) + step.
    Action 2 is legal at even steps only.
    """

    def __init__(self, batch: int = 2) -> None:
        agents = AgentClass("walker", ("a", "b"), 3, Discrete(3))
        self.spaces = EnvSpaces(classes=(agents,), state_size=3, max_steps=LIMIT, masks=True, deaths=True)
        self.batch = batch
        self.received: list[np.ndarray] = []
        self._last_step_NB = LAST_STEP_BN[np.arange(batch) % 2].T
        self._frames = [self._empty(), self._empty()]

    def reset(self, seed: int) -> Frame:
        self._episode = np.zeros(self.batch, np.int64)
        self._step = np.zeros(self.batch, np.int64)
        return self._show(self._frames[0])

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        self.received.append(actions[0].copy())
        alive = self._step <= self._last_step_NB
        rewards = np.where(alive, 10 * np.array([[1], [2]]) + self._step, 0).astype(np.float32)
        terminated = self._step == self._last_step_NB
        self._step += 1
        final = self._show(self._frames[0])
        truncated = self._step == LIMIT
        ended = truncated | ~final.alive[0].any(axis=0)
        self._episode += ended
        self._step[ended] = 0
        frame = self._show(self._frames[1])
        return Transition(frame, final, (rewards,), (terminated,), truncated, ended)

    def close(self) -> None: ...

    def _empty(self) -> Frame:
        return Frame(
            obs=(np.zeros((2, self.batch, 3), np.float32),),
            state=np.zeros((self.batch, 3), np.float32),
            masks=(np.zeros((2, self.batch, 3), np.bool_),),
            alive=(np.zeros((2, self.batch), np.bool_),),
        )

    def _show(self, frame: Frame) -> Frame:
        alive = frame.alive[0]
        alive[...] = self._step <= self._last_step_NB
        for agent in range(2):
            row = np.stack([self._episode, self._step, np.full(self.batch, agent + 1)], axis=-1)
            frame.obs[0][agent] = row * alive[agent, :, None]
        frame.state[...] = np.stack([np.arange(self.batch) + 1, self._episode, self._step], axis=-1)
        frame.masks[0][...] = True
        frame.masks[0][:, self._step % 2 == 1, 2] = False
        return frame
