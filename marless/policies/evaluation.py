"""How good a team is: whole episodes played here, beside chance, without any service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from marless import record, round_file
from marless.data.rollout import EpisodeStats, play
from marless.envs import registry
from marless.envs.base import BatchedEnv
from marless.errors import SpecError
from marless.policies.policy import Origin
from marless.policies.team import Team
from marless.record import Returns

BATCH = 64
"""Copies that play side by side."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What an evaluation found."""

    returns: Returns
    standard_errors: Mapping[str, float]
    """Of `returns.per_agent`, over episodes."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A team's score and what chance scores on as many episodes from the same starts."""

    team: Score
    chance: Score


def evaluate(
    team: Team,
    env: str | None = None,
    options: Mapping[str, object] | None = None,
    *,
    episodes: int,
    seed: int,
    explore: bool = False,
    told: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Play `episodes` episodes with the team, and with uniformly random legal actions.

    `env` and `options` are those the team was trained in unless given; `told` hears how many episodes have ended, of
    how many in all. Raises SpecError if the environment is not known or cannot be made, or if the team does not fit it.
    """
    copies = environment(team, env, options, batch=min(episodes, BATCH))
    try:
        policies = team.acting(copies.spaces)
        ended, ended_by_chance = (partial(_tell, told, before, 2 * episodes) for before in (0, episodes))
        played = play(copies, policies, episodes=episodes, seed=seed, explore=explore, ended=ended)
        chance = play(copies, None, episodes=episodes, seed=seed, ended=ended_by_chance)
        return Evaluation(team=_score(played), chance=_score(chance))
    finally:
        copies.close()


def _tell(told: Callable[[int, int], None] | None, before: int, total: int, episodes: int) -> None:
    if told:
        told(before + episodes, total)


def environment(team: Team, env: str | None, options: Mapping[str, object] | None, *, batch: int) -> BatchedEnv:
    """Make the environment that a team was trained in, or another; `options` add to those of its training.

    Raises SpecError if it is not known or cannot be made.
    """
    name = env or team.origin.env
    if not name:
        raise SpecError("nothing says which environment these policies were trained in; name one, e.g. --env NAME")
    trained = team.origin.env_options if name == team.origin.env else {}
    return registry.make(name, {**trained, **(options or {})}, batch)


def reported(origin: Origin) -> Returns | None:
    """The greedy evaluation that a job recorded of these very policies; None if it did none, or is not here.

    Raises CorruptError if the job's records are damaged.
    """
    if origin.run_dir is None or not origin.round:
        return None
    found = next(round_file.read(origin.run_dir / "rounds.jsonl", origin.round - 1), None)
    return found.evaluation if found else None


def _score(stats: EpisodeStats) -> Score:
    returns = record.returns_of([stats])
    if returns is None:
        raise SpecError("an evaluation needs at least one episode")
    errors = {
        agent: record.standard_error(total, stats.return_square_sum[agent], stats.episodes)
        for agent, total in stats.return_sum.items()
    }
    return Score(returns=returns, standard_errors=errors)
