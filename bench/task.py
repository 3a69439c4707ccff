"""The task that every system is measured on, said once.

Standard library only: peers' interpreters, which know nothing of marless, import this module too.
"""

from __future__ import annotations

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
