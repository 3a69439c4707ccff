"""The task on which all systems are measured.

Standard library only, because peers' interpreters, which do not have marless installed, import this module too.
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
    """Units of the two tanh layers, for policies and critics."""
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
    """Per agent, over its policy and critic together (systems that clip differently keep their own method)."""
    target_return: float = -21.0
    """Undiscounted greedy return per agent, mean over agents; a uniformly random policy has about -26."""
    evaluation_episodes: int = 100

    @property
    def minibatch_env_steps(self) -> int:
        """Env steps of one minibatch."""
        return self.iteration_env_steps // self.minibatches


TASK = Task()


@dataclass(frozen=True)
class Rates:
    """The settings of an optimizer that `bench.algorithms` gives to all systems alike."""

    lr: float
    """Adam's learning rate of all nets."""
    clip: float
    """Limit of the gradient's norm: of each net in marless, of each loss in BenchMARL."""
    tau: float
    """Off-policy: fraction by which each gradient step moves a target net."""

    @property
    def flags(self) -> tuple[str, ...]:
        """As options of a measured program."""
        return tuple(f"--{name}={value:g}" for name, value in vars(self).items())

    def __str__(self) -> str:
        return f"lr {self.lr:g}, clip {self.clip:g}, τ {self.tau:g}"


_PPO: Mapping[str, object] = {"lr": 2e-3, "gamma": 0.95}
_Q: Mapping[str, object] = {"lr": 1e-3, "gamma": 0.95, "target_tau": 0.02}
_DDPG: Mapping[str, object] = {**_Q, "critic_lr": 4e-3}
OWN: Mapping[str, Mapping[str, object]] = {
    "ippo": _PPO,
    "mappo": _PPO,
    "iql": _Q,
    "vdn": _Q,
    "qmix": {"lr": 5e-4, "gamma": 0.95, "target_every": 400},
    "maddpg": _DDPG,
    "iddpg": _DDPG,
}
"""marless's own settings for particle games, where they differ from the defaults of its algorithms."""
EQUAL = Rates(lr=TASK.learning_rate, clip=TASK.max_grad_norm, tau=0.005)
"""The task's rate and clip, and BenchMARL's default τ."""
_PPO_ALIKE: Mapping[str, object] = {
    "value_normalisation": False,
    "advantage_normalisation": "none",
    "adam_eps": 1e-6,
}
_Q_ALIKE: Mapping[str, object] = {"double": False, "reward_normalisation": False, "optimizer_eps": 1e-6}
_DDPG_ALIKE: Mapping[str, object] = {"reward_normalisation": False, "regularisation": 0.0, "optimizer_eps": 1e-6}
ALIKE: Mapping[str, Mapping[str, object]] = {
    "ippo": _PPO_ALIKE,
    "mappo": _PPO_ALIKE,
    "iql": _Q_ALIKE,
    "vdn": _Q_ALIKE,
    "qmix": _Q_ALIKE,
    "maddpg": _DDPG_ALIKE,
    "iddpg": _DDPG_ALIKE,
}
"""What only marless has, switched off, and the ε of Adam as in BenchMARL."""
GRID = (EQUAL, Rates(5e-4, 10.0, 0.02), Rates(1e-3, 10.0, 0.02), Rates(2e-3, 0.5, 0.02))
"""The settings from which each system's best is chosen."""


@dataclass(frozen=True)
class Game:
    """A game for comparing algorithms, by its names in mpe2 and marless."""

    peer: str
    """Module of mpe2, whose episodes have `TASK.episode_steps` steps; empty if mpe2 has no such game."""
    peer_options: Mapping[str, object]
    ours: str
    our_options: Mapping[str, object]
    env_steps: int
    """Default number of env steps of a run."""
    groups: Mapping[str, int]
    """Agent class → number of agents; they are named `agent_0` and so on."""

    def options(self, *, continuous: bool) -> dict[str, object]:
        """Options of the game in marless; games of mpe2 have a variant with continuous actions."""
        return dict(self.our_options) | ({"continuous_actions": continuous} if self.peer else {})

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
    "cartpoles": Game("", {}, "game/cartpole", {"agents": 3}, 56_000, {"agent": 3}),
}

CONTINUOUS = ("maddpg", "iddpg")
"""Algorithms that use the continuous actions of a game."""
ON_POLICY = ("ippo", "mappo")
ALGORITHMS = (*ON_POLICY, "iql", "vdn", "qmix", *CONTINUOUS)
OFF_POLICY_BATCH = 800
"""Env steps per gradient step of peers, of which there is one per `TASK.episode_steps` env steps: the best found."""
EXPLORED_ENV_STEPS = 50_000
"""Env steps over which ε, or the deviation of noise, falls from 1 to 0.05 in peers."""
SIMULATORS = ("mpe2", "marless", "vmas")
"""Of peers that offer several: copies of mpe2 stepped one by one, marless's batched copies of the same game, or VMAS's
batched copies of spread, whose rules differ."""
PEER_COPIES = 16
"""Environment copies for peers' off-policy algorithms; an iteration is one episode of each. It is the best setting
found for them; marless's rounds have `TASK.iteration_env_steps` for all algorithms."""


def peer_env_steps(algorithm: str) -> int:
    """Env steps per iteration of a peer."""
    return TASK.iteration_env_steps if algorithm in ON_POLICY else PEER_COPIES * TASK.episode_steps
