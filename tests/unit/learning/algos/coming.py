"""An environment whose agents come and go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from marless.learning.envs.base import ActionArray, BatchedEnv, BoolArray, Frame, Transition

_THERE = 0.7


class ComeAndGo:
    """Another environment in which each agent is there in some steps, by chance, and absent in others.

    Everyone is there when an episode starts. What the others do to rewards and terminations stays as it is.
    """

    def __init__(self, env: BatchedEnv) -> None:
        self._env = env
        self.batch, self.spaces = env.batch, replace(env.spaces, deaths=True)

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        return self._showing(self._env.reset(seed), np.ones(self.batch, np.bool_))

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        found = self._env.step(actions)
        shown = self._showing(found.frame, found.ended)
        return replace(found, frame=shown, final=replace(found.final, alive=shown.alive))

    def close(self) -> None:
        self._env.close()

    def _showing(self, frame: Frame, all_B: BoolArray) -> Frame:
        alive = tuple((self._rng.random(obs.shape[:2]) < _THERE) | all_B for obs in frame.obs)
        obs = tuple(each * there[..., None] for each, there in zip(frame.obs, alive, strict=True))
        return replace(frame, obs=obs, alive=alive)
