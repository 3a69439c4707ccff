"""The agents of a PettingZoo environment: their classes, their rows there, and the codec of each class."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marless.envs.base import AgentClass, Discrete
from marless.envs.pettingzoo.spaces import Codec, codec
from marless.errors import SpecError

# Any stands for PettingZoo's objects, because third-party ones need not subclass anything.
ParallelEnv = Any


class Seats:
    """Maps each agent to its class and its row there, and each class to its codec."""

    def __init__(self, env: ParallelEnv, observations: Mapping[Any, Any]) -> None:
        """Read the spaces of all possible agents, after a reset, which answered `observations`. Raises SpecError."""
        if not hasattr(env, "possible_agents"):
            raise SpecError("does not declare possible_agents, so its agents cannot be known in advance")
        self.codecs: list[Codec] = []
        self._members: list[list[Any]] = []
        for agent in env.possible_agents:
            mine = _codec(env, agent, observations)
            if mine not in self.codecs:
                self.codecs.append(mine)
                self._members.append([])
            self._members[self.codecs.index(mine)].append(agent)
        self._seat = {a: (k, i) for k, agents in enumerate(self._members) for i, a in enumerate(agents)}
        self.classes = self._classes()
        self.discrete = tuple(isinstance(each.action, Discrete) for each in self.classes)
        """Whether the actions of each class are discrete, so that masks apply to them."""

    def __contains__(self, agent: Any) -> bool:
        return agent in self._seat

    def __getitem__(self, agent: Any) -> tuple[int, int]:
        """Class and row of an agent; raises SpecError for one that the environment did not declare."""
        if agent not in self._seat:
            raise SpecError(f"agent {agent!r} takes part, which is not among its possible_agents")
        return self._seat[agent]

    def _classes(self) -> tuple[AgentClass, ...]:
        """The agent classes, named after their first agent without its number."""
        classes: list[AgentClass] = []
        for mine, members in zip(self.codecs, self._members, strict=True):
            agents = tuple(_name(agent) for agent in members)
            name = re.sub(r"_?\d+$", "", agents[0]) or "agent"
            if name in [c.name for c in classes]:
                name = f"{name}_{len(classes)}"
            classes.append(AgentClass(name, agents, mine.obs_size, mine.action_space))
        return tuple(classes)


def _name(agent: Any) -> str:
    return agent if isinstance(agent, str) else f"agent_{agent}"


def _codec(env: ParallelEnv, agent: Any, observations: Mapping[Any, Any]) -> Codec:
    try:
        with warnings.catch_warnings():  # without spaces, PettingZoo warns before it raises
            warnings.simplefilter("ignore")
            space, action = env.observation_space(agent), env.action_space(agent)
    except AttributeError:
        if agent not in observations or not hasattr(env, "action_spaces"):
            raise SpecError(f"does not declare the spaces of agent {agent!r}") from None
        shape = np.shape(observations[agent])
        space, action = spaces.Box(-np.inf, np.inf, shape), env.action_space(agent)
    return codec(space, action)
