"""What each side of a competitive game has learned: it plays against chance, and is compared with chance in its place.

Where sides learn against one another, what one wins another loses: their mean return says nothing, and may end below
that of random play though all have learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from marless.data.rollout import ActingPolicy, EpisodeStats, play
from marless.envs.base import ActionArray, AgentClass, BoolArray, EnvSpaces, FloatArray, chance_acts
from marless.policies.evaluation import BATCH, environment
from marless.policies.team import Team


@dataclass(frozen=True)
class Side:
    """One agent class against chance; mean undiscounted returns per agent of the class."""

    greedy: float
    chance: float
    """With chance in its place too, from the same starts."""


def against_chance(team: Team, *, episodes: int, seed: int) -> Mapping[str, Side]:
    """By agent class: its policies play greedily, all other classes uniformly over legal actions.

    Played in the environment of their training. Raises SpecError if that cannot be made, or the team does not fit it.
    """
    copies = environment(team, None, None, batch=min(episodes, BATCH))
    try:
        trained, spaces = team.acting(copies.spaces), copies.spaces
        chance = play(copies, None, episodes=episodes, seed=seed)
        found = {}
        for k, agents in enumerate(spaces.classes):
            others = [_Chance(each, seed + i) for i, each in enumerate(spaces.classes)]
            policies: list[ActingPolicy] = [trained[i] if i == k else other for i, other in enumerate(others)]
            played = play(copies, policies, episodes=episodes, seed=seed)
            found[agents.name] = Side(_mean(played, agents), _mean(chance, agents))
        return found
    finally:
        copies.close()


def competitive(spaces: EnvSpaces) -> bool:
    """True if agents of several classes play against one another."""
    return spaces.rewards == "competitive" and len(spaces.classes) > 1


class _Chance:
    """Acts uniformly over legal actions, and remembers nothing."""

    def __init__(self, agents: AgentClass, seed: int) -> None:
        self._agents = agents
        self._rng = np.random.default_rng(seed)

    def begin(self, batch: int) -> None:
        """See `ActingPolicy`."""

    def ended(self, ended_B: BoolArray) -> None:
        """See `ActingPolicy`."""

    def sample(
        self, obs_NBO: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        """See `ActingPolicy`; all actions are equally likely, so log-probabilities are left at 0."""
        return chance_acts(self._agents, obs_NBO, mask_NBA, rng), np.zeros(obs_NBO.shape[:2], np.float32)

    def greedy(self, obs_NBO: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        """See `ActingPolicy`; chance has no preference, so it draws here too."""
        return chance_acts(self._agents, obs_NBO, mask_NBA, self._rng)

    def to_env(self, action: ActionArray) -> ActionArray:
        """See `ActingPolicy`; the box is drawn from directly."""
        return action


def _mean(stats: EpisodeStats, agents: AgentClass) -> float:
    total = sum(stats.return_sum[agent] for agent in agents.agents)
    return total / (stats.episodes * len(agents.agents))
