"""Small PettingZoo environments whose agents act in turns: who acts next is given an observation, and all stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marless.learning.envs.pettingzoo.adapter import PettingZooEnv

Seen = dict[str, np.ndarray]


class Turns(ParallelEnv):
    """Base: agents "a" and "b" with four actions observe [1]; the state is the step, one-hot. The last step ends it."""

    metadata: Mapping[str, Any] = {"name": "turns", "render_modes": []}
    length, terminates = 2, True

    def __init__(self) -> None:
        self.possible_agents = ["a", "b"]
        self.state_space = spaces.Box(0.0, 1.0, (self.length + 1,), np.float32)
        self.given: list[dict[str, int]] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(4)

    def state(self) -> np.ndarray:
        return np.eye(self.length + 1, dtype=np.float32)[self.t]

    def turn(self, agent: str) -> bool:
        """Whether an agent acts in the next step."""
        raise NotImplementedError

    def paid(self, actions: Mapping[str, int]) -> dict[str, float]:
        """The rewards of the step that was just taken, before the clock moves."""
        raise NotImplementedError

    def reset(self, seed: int | None = None, options: object = None) -> tuple[Seen, dict[str, dict[str, object]]]:
        self.agents, self.t = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, actions: Mapping[str, int]) -> tuple[Seen, dict[str, float], dict[str, bool], dict[str, bool], dict]:
        self.given.append(dict(actions))
        rewards = self.paid(actions)
        self.t += 1
        acted, over = list(self.agents), self.t == self.length
        self.agents = [] if over else acted
        ended, cut = (dict.fromkeys(acted, over and self.terminates is flag) for flag in (True, False))
        return self._seen(), rewards, ended, cut, {}

    def close(self) -> None: ...

    def _seen(self) -> Seen:
        return {agent: np.ones(1, np.float32) for agent in self.possible_agents if self.turn(agent)}


class Alternating(Turns):
    """a moves in step 0, b in step 1; then a is paid 1 if it chose 2, and b if it chose 3."""

    def turn(self, agent: str) -> bool:
        return agent == "ab"[self.t % 2]

    def paid(self, actions: Mapping[str, int]) -> dict[str, float]:
        if self.t == 0:
            self.chosen = actions["a"]
            return {"a": 0.0, "b": 0.0}
        return {"a": float(self.chosen == 2), "b": float(actions["b"] == 3)}


class Blinking(Turns):
    """a acts in each of 40 steps and is paid 1; b acts, and is paid 1, in even ones. Then the time limit cuts them.

    With γ = 0.9, a's value is 1 / (1 − γ) = 10, b's at its turns 1 / (1 − γ²) = 5.263.
    """

    length, terminates = 40, False

    def turn(self, agent: str) -> bool:
        return agent == "a" or self.t % 2 == 0

    def paid(self, actions: Mapping[str, int]) -> dict[str, float]:
        return {agent: float(self.turn(agent)) for agent in self.possible_agents}


class Late(Blinking):
    """As `Blinking`, but b is paid 1 in odd steps, while it waits, and the limit cuts it while it waits.

    With γ = 0.9, b's value at its turns is γ / (1 − γ²) = 4.737.
    """

    length = 39

    def paid(self, actions: Mapping[str, int]) -> dict[str, float]:
        return {"a": 1.0, "b": float(self.t % 2)}


def copies(make: Callable[[], ParallelEnv], batch: int) -> PettingZooEnv:
    """Copies behind the batched protocol."""
    return PettingZooEnv([make() for _ in range(batch)])
