"""Evaluates each side of a competitive game against random opponents, compared with a random policy in its place.

When sides learn against each other, one side's gain is another's loss, so that their mean return does not measure
progress: it may end below that of random actions although all sides have learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.rollout import ActingPolicy, play
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    BatchedEnv,
    BoolArray,
    EnvSpaces,
    FloatArray,
    chance_acts,
)
from marless.learning.policies.evaluation import BATCH, environment
from marless.learning.policies.team import Team


@dataclass(frozen=True)
class Side:
    """Mean undiscounted returns per agent of one agent class, against opponents that act at random."""

    greedy: float
    chance: float
    """The same with random actions in its place, from the same initial states."""


def against_chance(team: Team, *, episodes: int, seed: int) -> Mapping[str, Side]:
    """Evaluate each agent class, by name: it acts greedily, and all others uniformly at random over legal actions.

    Runs in the environment of training. Raises SpecError if that cannot be made, or the team does not fit it.
    """
    copies = environment(team, None, None, batch=min(episodes, BATCH))
    try:
        return sides(copies, team.acting(copies.spaces), episodes=episodes, seed=seed)
    finally:
        copies.close()


def sides(copies: BatchedEnv, trained: Sequence[ActingPolicy], *, episodes: int, seed: int) -> Mapping[str, Side]:
    """The sides of `against_chance`, with a policy for each agent class of these copies, which stay open."""
    spaces = copies.spaces
    chance = play(copies, None, episodes=episodes, seed=seed)
    found = {}
    for k, agents in enumerate(spaces.classes):
        # Made anew for each side, so that all of them meet the same random opponents.
        others = [Chance(each, seed + i) for i, each in enumerate(spaces.classes)]
        policies = [trained[i] if i == k else other for i, other in enumerate(others)]
        played = play(copies, policies, episodes=episodes, seed=seed)
        found[agents.name] = Side(_mean(played, agents), _mean(chance, agents))
    return found


def competitive(spaces: EnvSpaces) -> bool:
    """True if the rewards are competitive and there are several agent classes."""
    return spaces.rewards == "competitive" and len(spaces.classes) > 1


class Chance:
    """A stateless policy that acts uniformly at random over legal actions."""

    def __init__(self, agents: AgentClass, seed: int) -> None:
        self._agents = agents
        self._rng = np.random.default_rng(seed)

    def begin(self, batch: int) -> None:
        """See `ActingPolicy`."""

    def reset_memory(self, anew_NB: BoolArray) -> None:
        """See `ActingPolicy`."""

    def sample(
        self, obs_NBO: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        """See `ActingPolicy`; log-probabilities are 0, as evaluations do not use them."""
        return chance_acts(self._agents, obs_NBO, mask_NBA, rng), np.zeros(obs_NBO.shape[:2], np.float32)

    def greedy(self, obs_NBO: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        """See `ActingPolicy`; random here, too, as no action is preferred."""
        return chance_acts(self._agents, obs_NBO, mask_NBA, self._rng)

    def to_env(self, action: ActionArray) -> ActionArray:
        """See `ActingPolicy`; actions are drawn within the box already."""
        return action


def _mean(stats: EpisodeStats, agents: AgentClass) -> float:
    total = sum(stats.return_sum[agent] for agent in agents.agents)
    return total / (stats.episodes * len(agents.agents))
