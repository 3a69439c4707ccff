"""Greedy evaluation on mpe2, the same for every peer: whole episodes, one batched forward pass per time step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from mpe2 import simple_spread_v3
from numpy.typing import NDArray

from bench.task import TASK

Act = Callable[[NDArray[np.float32]], NDArray[np.integer]]
"""Observations float32 [N, B, O] → actions int [N, B], greedy."""


def make_env() -> simple_spread_v3.parallel_env:
    """One copy of the task's environment, discrete actions."""
    return simple_spread_v3.parallel_env(
        N=TASK.agents, local_ratio=TASK.local_ratio, max_cycles=TASK.episode_steps, continuous_actions=False
    )


class GreedyEvaluation:
    """Holds one environment copy per episode, made when first needed."""

    @cached_property
    def _envs(self) -> list[simple_spread_v3.parallel_env]:
        return [make_env() for _ in range(TASK.evaluation_episodes)]

    def __call__(self, act: Act, seed: int) -> float:
        """Undiscounted return per agent, mean over agents and episodes."""
        agents = self._envs[0].possible_agents
        seen = [env.reset(seed=seed * len(self._envs) + i)[0] for i, env in enumerate(self._envs)]
        total = 0.0
        for _ in range(TASK.episode_steps):
            action_NB = act(np.array([[obs[agent] for obs in seen] for agent in agents], dtype=np.float32))
            for i, env in enumerate(self._envs):
                chosen = {agent: int(action_NB[n, i]) for n, agent in enumerate(agents)}
                seen[i], rewards, _, _, _ = env.step(chosen)
                total += sum(rewards.values())
        return float(total) / (len(agents) * len(self._envs))
