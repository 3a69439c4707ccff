"""SMAC's own class, method by method, for programs that were written for it.

    from marless_smac.classic import StarCraft2Env
    env = StarCraft2Env(map_name="8m")

Observations, states and masks have SMAC's layouts, and rewards its scale. A battle that reaches its limit is reported
as over, as in SMAC; with `continuing_episode`, `info` then has `episode_limit`. What depends on the game itself is
missing: replays, and the difficulty of the opponent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marless.core.errors import SpecError
from marless.learning.envs.base import FloatArray, Frame
from marless.learning.envs.registry import read_options
from marless_smac.embedded import EmbeddedSmac
from marless_smac.maps import find
from marless_smac.options import SmacOptions


class StarCraft2Env:
    """One battle at a time on the embedded engine, with the methods of SMAC's class of this name."""

    def __init__(self, map_name: str = "8m", *, seed: int = 0, **options: Any) -> None:  # Any: checked by SmacOptions
        self._map = find(map_name)
        # The default of SMAC's class, where `smac/<map>` truncates at the limit.
        self._env = EmbeddedSmac(self._map, read_options(SmacOptions, {"continuing_episode": False} | options), 1)
        self._seed = seed
        self._shown: Frame | None = None
        self._next: Frame | None = None
        """The first frame of the next battle, once a battle is over."""
        self.n_agents, self.n_enemies = len(self._map.ally_kinds), len(self._map.enemy_kinds)
        self.n_actions, self.episode_limit = self._map.n_actions, self._map.limit

    def reset(self) -> tuple[list[FloatArray], FloatArray]:
        """Begin a battle; returns all observations and the state."""
        if self._shown is None:
            self._shown = self._env.reset(self._seed)
        elif self._next is not None:
            self._shown, self._next = self._next, None
        else:
            self._shown = self._env.restart(np.ones(1, np.bool_))
        return self.get_obs(), self.get_state()

    def step(self, actions: Sequence[int]) -> tuple[float, bool, dict[str, Any]]:  # Any: a flag or a count
        """Let all agents act: the reward, whether the battle is over, and `battle_won` and the numbers of the dead.

        Raises SpecError for an action that is not available, and between battles.
        """
        if self._shown is None or self._next is not None:
            raise SpecError("no battle is going on: call reset() first")
        if len(actions) != self.n_agents:
            raise SpecError(f"map {self._map.name} has {self.n_agents} agents, got {len(actions)} actions")
        moved = self._env.step((np.array(actions, np.int32)[:, None],))
        over = bool(moved.ended[0])
        self._shown, self._next = (moved.final, moved.frame) if over else (moved.frame, None)
        info = {
            "battle_won": moved.won is not None and bool(moved.won[0]),
            "dead_allies": int(self._env.dead_allies[0]),
            "dead_enemies": int(self._env.dead_enemies[0]),
        } | ({"episode_limit": True} if moved.truncated[0] else {})
        return float(moved.rewards[0][0, 0]), over, info

    def get_obs(self) -> list[FloatArray]:
        """The observation of each agent, float32."""
        return [self.get_obs_agent(i) for i in range(self.n_agents)]

    def get_obs_agent(self, agent_id: int) -> FloatArray:
        """The observation of one agent, float32; zeros if it is dead."""
        seen: FloatArray = self._frame().obs[0][agent_id, 0].copy()
        return seen

    def get_state(self) -> FloatArray:
        """The global state, float32."""
        state = self._frame().state
        assert state is not None  # every map has one
        whole: FloatArray = state[0].copy()
        return whole

    def get_avail_actions(self) -> list[list[int]]:
        """A number for each agent and action: 1 if it is available, otherwise 0."""
        return [self.get_avail_agent_actions(i) for i in range(self.n_agents)]

    def get_avail_agent_actions(self, agent_id: int) -> list[int]:
        """A number for each action of an agent: 1 if it is available, otherwise 0."""
        masks = self._frame().masks
        assert masks is not None  # SMAC always has masks
        return [int(legal) for legal in masks[0][agent_id, 0]]

    def get_total_actions(self) -> int:
        """The number of actions of each agent."""
        return self.n_actions

    def get_obs_size(self) -> int:
        """The length of an observation."""
        return self._env.spaces.classes[0].obs_size

    def get_state_size(self) -> int:
        """The length of the state."""
        return self._env.spaces.state_size

    def get_env_info(self) -> dict[str, Any]:  # Any: a number, or names of features
        """Sizes, and the names of what the state tells about each unit."""
        bits = [f"type_{i}" for i in range(len(self._map.types))]
        shields = self._map.ally_shields, self._map.enemy_shields
        ally, enemy = (["shield"] * each + bits for each in shields)
        return {
            "state_shape": self.get_state_size(),
            "obs_shape": self.get_obs_size(),
            "n_actions": self.n_actions,
            "n_agents": self.n_agents,
            "episode_limit": self.episode_limit,
            "agent_features": ["health", "energy/cooldown", "rel_x", "rel_y", *ally],
            "enemy_features": ["health", "rel_x", "rel_y", *enemy],
        }

    def get_stats(self) -> dict[str, float]:
        """Battles so far, those won and drawn, and the fraction won."""
        return self._env.counts.stats()

    def close(self) -> None:
        """Release what the engine holds; calling it twice is safe."""
        self._env.close()

    def _frame(self) -> Frame:
        if self._shown is None:
            raise SpecError("no battle has begun: call reset() first")
        return self._shown
