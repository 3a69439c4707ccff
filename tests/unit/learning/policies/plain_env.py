"""A PettingZoo environment that cannot draw itself."""

from __future__ import annotations

from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Plain(ParallelEnv):
    metadata = {"name": "plain"}
    possible_agents = ["a"]

    def __init__(self, size: int = 1) -> None:
        self._space = Box(0, 1, (size,))

    def observation_space(self, agent: str) -> Box:
        return self._space

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)
