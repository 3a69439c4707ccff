"""A batched environment as a parallel environment of PettingZoo: one copy, one episode at a time.

A package that brings an environment subclasses `BatchedView` for users who want it outside of marless. Agents stay
until the episode is over for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError
from marless.learning.envs.base import AgentClass, BatchedEnv, Box, FloatArray, Frame, Transition

try:
    from gymnasium import spaces
    from pettingzoo import ParallelEnv
except ImportError as missing:
    raise SpecError(f"needs {missing.name}, which is not installed; pip install 'marless[pettingzoo]'") from None

EnvType = TypeVar("EnvType", bound=BatchedEnv)
Seen = dict[str, Any]  # Any: float32 [O], or a dict of it and int8 [A] where there are masks
Numbers = dict[str, float]
Flags = dict[str, bool]
Infos = dict[str, dict[str, Any]]  # Any: what the environment tells


class BatchedView(ParallelEnv, ABC, Generic[EnvType]):  # type: ignore[misc]  # PettingZoo has no types
    """One copy of an environment whose agents are alike, float32 observations and all.

    Raises SpecError for others. With `masked`, an agent observes a Dict of `observation` and `action_mask`, otherwise
    its observation. No number of the global state is below `least_state`.
    """

    def __init__(
        self, env: EnvType, *, masked: bool, render_mode: str | None = None, least_state: float = -np.inf
    ) -> None:
        agents = env.spaces.classes[0]
        if len(env.spaces.classes) > 1 or agents.obs_dtype != "float32":
            raise SpecError("a view for PettingZoo shows agents of one class that observe vectors of float32")
        self._env, self._masked = env, masked
        self.possible_agents = list(agents.agents)
        self.agents: list[str] = []
        self.render_mode = render_mode
        self.state_space = spaces.Box(least_state, np.inf, (env.spaces.state_size,), np.float32)
        self.observation_spaces = {agent: _observed(agents, masked) for agent in self.possible_agents}
        self.action_spaces = {agent: _chosen(agents) for agent in self.possible_agents}
        self._continuous = isinstance(agents.action, Box)
        self._frame: Frame | None = None
        self._state: FloatArray | None = None

    @abstractmethod
    def restarted(self) -> Frame:
        """Give up the episode, and begin another without a new seed."""

    @abstractmethod
    def info(self, moved: Transition) -> dict[str, Any]:  # Any: a flag or a number
        """What every agent is told of a step besides its reward."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:  # Any: what it holds
        """The space of an agent's observations."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:  # Any: as above
        """The space of an agent's actions."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, Infos]:
        """Begin an episode, from `seed` if one is given."""
        # At the end of an episode the environment has begun the next one already, which only needs to be shown.
        if seed is not None or self._frame is None:
            self._frame = self._env.reset(seed or 0)
        elif self.agents:
            self._frame = self.restarted()
        self.agents = list(self.possible_agents)
        self._state = self._frame.state
        return self._seen(self._frame), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Seen, Numbers, Flags, Flags, Infos]:  # Any: as spaces say
        """Let all agents act; raises SpecError between episodes, and for what the environment refuses."""
        if not self.agents:
            raise SpecError("no episode is going on: call reset() first")
        chosen = [[actions[agent]] for agent in self.possible_agents]
        moved = self._env.step((np.array(chosen, np.float32) if self._continuous else np.array(chosen, np.int32),))
        self._frame, self._state = moved.frame, moved.final.state
        agents, over, cut = self.agents, bool(moved.ended[0]), bool(moved.truncated[0])
        if over:
            self.agents = []
        return (
            self._seen(moved.final),
            dict(zip(agents, moved.rewards[0][:, 0].tolist(), strict=True)),
            dict.fromkeys(agents, over and not cut),
            dict.fromkeys(agents, cut),
            {agent: self.info(moved) for agent in agents},
        )

    def state(self) -> FloatArray:
        """The global state after the last step, float32 [S]."""
        if self._state is None:
            raise SpecError("no episode has begun: call reset() first")
        state: FloatArray = self._state[0].copy()
        return state

    def render(self) -> Any:  # Any: uint8 [height, width, 3], or None
        """Return None; subclasses may show a picture."""
        return None

    def close(self) -> None:
        """Release what the environment holds; calling it twice is safe."""
        self._env.close()

    def _seen(self, frame: Frame) -> Seen:
        seen: dict[str, NDArray[Any]] = dict(zip(self.possible_agents, frame.obs[0][:, 0].copy(), strict=True))
        if not self._masked:
            return seen
        assert frame.masks is not None  # a masked environment always has masks
        masks = dict(zip(self.possible_agents, frame.masks[0][:, 0].astype(np.int8), strict=True))
        return {agent: {"observation": seen[agent], "action_mask": masks[agent]} for agent in seen}


def _observed(agents: AgentClass, masked: bool) -> spaces.Space[Any]:  # Any: a vector, or a dict
    vector = spaces.Box(-np.inf, np.inf, (agents.obs_size,), np.float32)
    if not masked:
        return vector
    return spaces.Dict({"observation": vector, "action_mask": spaces.Box(0, 1, (agents.action.n,), np.int8)})


def _chosen(agents: AgentClass) -> spaces.Space[Any]:  # Any: a number, or a vector
    if not isinstance(agents.action, Box):
        return spaces.Discrete(agents.action.n)
    low, high = (bound.astype(np.float32) for bound in agents.action.bounds)
    return spaces.Box(low, high, dtype=np.float32)
