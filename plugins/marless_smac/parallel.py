"""SMAC's battles as a parallel environment of PettingZoo.

    from marless_smac.parallel import parallel_env
    env = parallel_env(map_name="8m")

Each agent observes a Dict of `observation` and `action_mask`. Agents that died stay until the battle is over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError
from marless.learning.envs.base import FloatArray, Frame
from marless.learning.envs.registry import read_options
from marless_smac.embedded import EmbeddedSmac
from marless_smac.maps import find
from marless_smac.options import SmacOptions

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv
except ImportError as missing:
    raise SpecError(f"needs {missing.name}, which is not installed; pip install 'marless[pettingzoo]'") from None

Seen = dict[str, dict[str, NDArray[Any]]]  # Any: float32 observations and int8 masks
Numbers = dict[str, float]
Flags = dict[str, bool]
Infos = dict[str, dict[str, Any]]  # Any: a flag or a count


class parallel_env(ParallelEnv):  # type: ignore[misc]  # noqa: N801  # PettingZoo has no types; the name is its own
    """One battle at a time on the embedded engine."""

    metadata = {"name": "marless_smac", "render_modes": [], "is_parallelizable": True}  # noqa: RUF012  # PettingZoo's

    def __init__(self, map_name: str = "8m", **options: Any) -> None:  # Any: checked by SmacOptions
        self._env = EmbeddedSmac(find(map_name), read_options(SmacOptions, options), 1)
        agents = self._env.spaces.classes[0]
        self.possible_agents = list(agents.agents)
        self.agents: list[str] = []
        self.render_mode = None
        state = self._env.spaces.state_size
        self.state_space = spaces.Box(-np.inf, np.inf, (state,), np.float32)
        seen: dict[str, spaces.Space[Any]] = {
            "observation": spaces.Box(-np.inf, np.inf, (agents.obs_size,), np.float32),
            "action_mask": spaces.Box(0, 1, (agents.action.n,), np.int8),
        }
        self.observation_spaces = {agent: spaces.Dict(seen) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(agents.action.n) for agent in self.possible_agents}
        self._frame: Frame | None = None
        self._state: FloatArray | None = None

    def observation_space(self, agent: str) -> spaces.Space[Any]:  # Any: a Dict
        """The space of an agent's observations."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:  # Any: an integer
        """The space of an agent's actions."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, Infos]:
        """Begin a battle, from `seed` if one is given."""
        # At the end of a battle the environment has begun the next one already, which only needs to be shown.
        if seed is not None or self._frame is None:
            self._frame = self._env.reset(seed or 0)
        elif self.agents:
            self._frame = self._env.restart(np.ones(1, np.bool_))
        self.agents = list(self.possible_agents)
        self._state = self._frame.state
        return self._seen(self._frame), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Seen, Numbers, Flags, Flags, Infos]:
        """Let all agents act; raises SpecError for an action that is not available, and between battles."""
        if not self.agents:
            raise SpecError("no battle is going on: call reset() first")
        action_NB = np.array([[actions[agent]] for agent in self.possible_agents], np.int32)
        moved = self._env.step((action_NB,))
        self._frame, self._state = moved.frame, moved.final.state
        agents, over = self.agents, bool(moved.ended[0])
        truncated = bool(moved.truncated[0])
        info = {"battle_won": moved.won is not None and bool(moved.won[0])}
        if over:
            self.agents = []
        return (
            self._seen(moved.final),
            dict.fromkeys(agents, float(moved.rewards[0][0, 0])),
            dict.fromkeys(agents, over and not truncated),
            dict.fromkeys(agents, truncated),
            {agent: dict(info) for agent in agents},
        )

    def state(self) -> FloatArray:
        """The global state after the last step."""
        if self._state is None:
            raise SpecError("no battle has begun: call reset() first")
        state: FloatArray = self._state[0].copy()
        return state

    def render(self) -> None:
        """Do nothing; `marless evaluate --render` draws battles."""

    def close(self) -> None:
        """Release what the engine holds; calling it twice is safe."""
        self._env.close()

    def _seen(self, frame: Frame) -> Seen:
        masks = frame.masks
        assert masks is not None  # SMAC always has masks
        return {
            agent: {"observation": frame.obs[0][i, 0].copy(), "action_mask": masks[0][i, 0].astype(np.int8)}
            for i, agent in enumerate(self.possible_agents)
        }
