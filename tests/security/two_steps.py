"""A PettingZoo environment of two steps, as a package that an operator may allow."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class TwoSteps(ParallelEnv):
    """One agent that sees nothing of use."""

    metadata = {"name": "two_steps"}
    possible_agents = ["a"]

    def observation_space(self, agent: str) -> Box:
        return Box(0, 1, (1,))

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: object = None):
        self.agents, self._steps = ["a"], 0
        return {"a": np.zeros(1)}, {"a": {}}

    def step(self, actions):
        self._steps += 1
        over = {"a": self._steps == 2}
        self.agents = [] if over["a"] else ["a"]
        return {"a": np.zeros(1)}, {"a": 1.0}, over, {"a": False}, {"a": {}}

    def state(self):
        return np.zeros(1)
