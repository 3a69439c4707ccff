"""MuJoCo's tasks for one agent, the settings of both sides, and the evaluation, which is the same program for both.

It needs Gymnasium and NumPy only, so that peers can import it in environments of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Act = Callable[[NDArray[np.float64]], NDArray[np.floating[Any]]]
"""An observation [O] → the greedy action [A], in the environment's units."""
EPISODES = 20
TASKS: Mapping[str, str] = MappingProxyType(
    {
        "hopper": "Hopper-v5",
        "walker2d": "Walker2d-v5",
        "half_cheetah": "HalfCheetah-v5",
        "inverted_double_pendulum": "InvertedDoublePendulum-v5",
        "humanoid": "Humanoid-v5",
    }
)
"""Task of marless, without "mujoco/", and of Gymnasium."""
ALGORITHMS = ("ppo", "sac", "td3")
_CAREFUL: Mapping[str, object] = MappingProxyType(
    {
        "actors": {"count": 2, "envs": 32, "steps": 32},
        "algorithm.initial_std": 0.37,
        "algorithm.clip": 0.1,
    }
)
"""Many copies, and policies that act less widely and change less at once."""
TUNED: Mapping[str, Mapping[str, object]] = MappingProxyType({"walker2d": _CAREFUL, "half_cheetah": _CAREFUL})
"""By task, settings of PPO that differ from `examples/hopper.yaml`, by their dotted names; chosen with other seeds."""
COPIES = 64
"""Copies that Stable-Baselines3 steps where a round has as many samples as one of marless; its zoo has one copy. It was
the quickest of 8, 32 and 64 in one process, on one thread and two, and of 2, 8 and 32 in processes of their own."""
RLLIB_COPIES = 16
"""Copies of each of RLlib's two env runners, the quickest of 8, 16 and 32."""


def warm_up(env_steps: int) -> int:
    """Random env steps before the first gradient step of SAC and TD3: 10,000, or a tenth of a short run."""
    return min(10_000, env_steps // 10)


def returns(task: str, act: Act, seed: int) -> list[float]:
    """Undiscounted returns of whole episodes of Gymnasium's own environment."""
    env, found = gymnasium.make(TASKS[task]), []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=1_000_000 * (seed + 1) + episode)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total += float(reward)
            over = terminated or truncated
        found.append(total)
    env.close()
    return found
