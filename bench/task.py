"""The task that every system is measured on, said once.

Standard library only: peers' interpreters, which know nothing of marless, import this module too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """`simple_spread_v3` of mpe2 with independent PPO: a policy and a critic per agent.

    An env step: all agents act once in one environment copy.
    """

    agents: int = 3
    local_ratio: float = 0.5
    episode_steps: int = 25
    hidden: tuple[int, int] = (64, 64)
    """Units of the two tanh layers, of policies and critics alike."""
    iteration_env_steps: int = 4000
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 5e-4
    gamma: float = 0.95
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_grad_norm: float = 0.5
    """Per agent, over its policy and critic together (systems that clip otherwise keep their way)."""
    target_return: float = -21.0
    """Greedy return per agent, undiscounted, mean over agents; uniformly random play scores about -26."""
    evaluation_episodes: int = 100

    @property
    def minibatch_env_steps(self) -> int:
        """Env steps of one minibatch."""
        return self.iteration_env_steps // self.minibatches


TASK = Task()


@dataclass(frozen=True)
class Game:
    """A game that algorithms are compared in, as mpe2 and marless name it; episodes of `TASK.episode_steps`."""

    peer: str
    """Module of mpe2."""
    peer_options: Mapping[str, object]
    ours: str
    our_options: Mapping[str, object]
    env_steps: int
    """Of a run, unless its program is told otherwise."""
    groups: Mapping[str, int]
    """Agent classes and how many agents each has; `agent_0` and so on."""

    def agents(self, group: str) -> tuple[str, ...]:
        """Names of a class's agents."""
        return tuple(f"{group}_{i}" for i in range(self.groups[group]))


GAMES: Mapping[str, Game] = {
    "spread": Game(
        "simple_spread_v3",
        {"N": TASK.agents, "local_ratio": TASK.local_ratio},
        "mpe/simple_spread",
        {"agents": TASK.agents, "local_ratio": TASK.local_ratio},
        104_000,
        {"agent": TASK.agents},
    ),
    "adversary": Game(
        "simple_adversary_v3", {"N": 2}, "mpe/simple_adversary", {"agents": 2}, 32_000, {"adversary": 1, "agent": 2}
    ),
}

CONTINUOUS = ("maddpg", "iddpg")
"""Algorithms that get the continuous actions of a game."""
ON_POLICY = ("ippo", "mappo")
ALGORITHMS = (*ON_POLICY, "iql", "vdn", "qmix", *CONTINUOUS)
PEER_COPIES = 16
"""Environment copies of peers' algorithms that learn from a replay: an iteration is an episode of each. It served them
best; marless's rounds are `TASK.iteration_env_steps` long for all."""


def peer_env_steps(algorithm: str) -> int:
    """Env steps of a peer's iteration."""
    return TASK.iteration_env_steps if algorithm in ON_POLICY else PEER_COPIES * TASK.episode_steps
