"""Evaluates a team on whole episodes in this process, together with the random baseline; and each side of a game.

When sides learn against each other, one side's gain is another's loss, so that their mean return does not measure
progress: it may end below that of random actions although all sides have learned. So each side is also compared with a
random policy in its place, against random opponents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from marless.core.errors import SpecError
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.returns import EpisodeReturns, returns_of, standard_error
from marless.learning.data.rollout import ActingPolicy, play
from marless.learning.envs import registry
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    BatchedEnv,
    BoolArray,
    EnvSpaces,
    FloatArray,
    ObsArray,
    chance_acts,
)
from marless.learning.policies.team import Team

LIMIT_S = 60.0
"""Seconds for which an evaluation waits for the end of an episode."""
BATCH = 64
"""Maximum number of environment copies that are stepped together."""


@dataclass(frozen=True, kw_only=True)
class TeamScore:
    """The returns of an evaluation, with standard errors."""

    returns: EpisodeReturns
    standard_errors: Mapping[str, float | None]
    """Standard errors of `returns.per_agent`, over episodes; None for one episode."""


@dataclass(frozen=True, kw_only=True)
class TeamEvaluation:
    """A team's score, and that of random actions on the same number of episodes with the same initial states."""

    team: TeamScore
    chance: TeamScore


def evaluate(
    team: Team,
    env: str | None = None,
    options: Mapping[str, object] | None = None,
    *,
    episodes: int,
    seed: int,
    explore: bool = False,
    told: Callable[[int, int], None] | None = None,
    limit_s: float = LIMIT_S,
) -> TeamEvaluation:
    """Run `episodes` episodes with the team, and as many with uniformly random legal actions.

    Args:
        env: Name of the environment; None: the one that the team was trained in.
        options: Added to the options of training, if the environment is the same.
        explore: Sample actions instead of acting greedily.
        told: Called with the number of episodes that have ended, and the total.
        limit_s: Seconds without the end of an episode after which play is given up.

    Raises SpecError if the environment is unknown or cannot be made, if the team does not fit it, or if its episodes do
    not end.
    """
    copies = environment(team, env, options, batch=min(episodes, BATCH))
    try:
        policies = team.acting(copies.spaces)
        ended, ended_by_chance = (partial(_tell, told, before, 2 * episodes) for before in (0, episodes))
        bounded = partial(play, copies, episodes=episodes, seed=seed, limit_s=limit_s)
        played = bounded(policies, explore=explore, ended=ended)
        chance = bounded(None, ended=ended_by_chance) if played.episodes else played
        if not chance.episodes:
            raise SpecError(
                f"environment {env or team.origin.env}: no episode ended for {limit_s:g} s, so there is no return to "
                "report; end episodes by a time limit in the environment, or allow more seconds (--limit-s)"
            )
        return TeamEvaluation(team=_score(played), chance=_score(chance))
    finally:
        copies.close()


def _tell(told: Callable[[int, int], None] | None, before: int, total: int, episodes: int) -> None:
    if told:
        told(before + episodes, total)


def environment(team: Team, env: str | None, options: Mapping[str, object] | None, *, batch: int) -> BatchedEnv:
    """Make the environment that a team was trained in, or `env`; `options` are added to those of its training.

    Raises SpecError if it is unknown or cannot be made.
    """
    name = env or team.origin.env
    if not name:
        raise SpecError("the environment that these policies were trained in is not known; give one, e.g. --env NAME")
    trained = team.origin.env_options if name == team.origin.env else {}
    return registry.make(name, {**trained, **(options or {})}, batch)


def _score(stats: EpisodeStats) -> TeamScore:
    returns = returns_of([stats])
    if returns is None:
        raise SpecError("an evaluation needs at least one episode")
    errors = {agent: standard_error(scatter, stats.episodes) for agent, scatter in stats.return_scatter.items()}
    return TeamScore(returns=returns, standard_errors=errors)


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
        """Do nothing: there is no memory."""

    def reset_memory(self, anew_NB: BoolArray) -> None:
        """Do nothing: there is no memory."""

    def sample(
        self, obs_NBO: ObsArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        """Random legal actions; their log-probabilities are 0, as evaluations do not use them."""
        return chance_acts(self._agents, obs_NBO, mask_NBA, rng), np.zeros(obs_NBO.shape[:2], np.float32)

    def greedy(self, obs_NBO: ObsArray, mask_NBA: BoolArray | None) -> ActionArray:
        """Random legal actions here, too, as no action is preferred."""
        return chance_acts(self._agents, obs_NBO, mask_NBA, self._rng)

    def to_env(self, action: ActionArray) -> ActionArray:
        """The same: actions are drawn within the box already."""
        return action


def _mean(stats: EpisodeStats, agents: AgentClass) -> float:
    total = sum(stats.return_sum[agent] for agent in agents.agents)
    return total / (stats.episodes * len(agents.agents))
