"""Returns and lengths of episodes, added up while they are played. Suffixes as in `marless.learning.envs.base`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError
from marless.learning.data.returns import scatters
from marless.learning.envs.base import Arrays, BoolArray, EnvSpaces, Transition, saved


@dataclass(frozen=True, kw_only=True)
class EpisodeStats:
    """Sums over finished episodes; they can be added over actors."""

    env_steps: int
    """Env steps taken (all agents act once in one copy), including those of unfinished episodes."""
    episodes: int
    episode_steps: int
    """Env steps of the counted episodes, those of earlier rounds included."""
    return_sum: Mapping[str, float]
    """Sum of undiscounted returns, per agent."""
    return_scatter: Mapping[str, float]
    """Sum of squared differences of the returns from their mean, per agent."""
    mean_scatter: float
    """The same of the episodes' mean returns over all agents."""
    judged: int = 0
    """Counted episodes with a known result (won or not): all of them, or 0 if the environment does not report wins."""
    wins: int = 0
    """Counted episodes that were won."""
    broken: int = 0
    """Episodes that a fault of the environment has ended (`Transition.broken`). They count nowhere else."""


def total(parts: Sequence[EpisodeStats]) -> EpisodeStats:
    """Add up the sums of at least one batch of episodes."""
    first = parts[0]
    scatter, mean_scatter = scatters(parts)
    return EpisodeStats(
        env_steps=sum(each.env_steps for each in parts),
        episodes=sum(each.episodes for each in parts),
        episode_steps=sum(each.episode_steps for each in parts),
        return_sum={agent: math.fsum(each.return_sum[agent] for each in parts) for agent in first.return_sum},
        return_scatter=scatter,
        mean_scatter=mean_scatter,
        judged=sum(each.judged for each in parts),
        wins=sum(each.wins for each in parts),
        broken=sum(each.broken for each in parts),
    )


class EpisodeMeter:
    """Adds up returns of episodes that end; with a quota, only of the first `quota_B[b]` of copy b.

    Episodes that are parts of a whole (`Transition.unfinished`) count together, as one.
    """

    def __init__(self, spaces: EnvSpaces, batch: int, quota_B: NDArray[np.integer] | None = None) -> None:
        self._agents = spaces.agents
        self._missing_B = np.full(batch, np.iinfo(np.int64).max) if quota_B is None else quota_B.copy()
        self._return_NB = np.zeros((len(self._agents), batch))
        self.steps_B = np.zeros(batch, np.int64)
        """Env steps of the running episodes so far; valid until the next `add`."""
        self._clear()

    def save(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the returns and lengths so far of the episodes that are running."""
        return {"return": self._return_NB.copy(), "steps": self.steps_B.copy()}

    def load(self, arrays: Arrays) -> None:
        """Continue with saved returns and lengths; raises CorruptError."""
        self._return_NB = saved(arrays, "return", "float64", self._return_NB.shape).copy()
        self.steps_B = saved(arrays, "steps", "int64", self.steps_B.shape).copy()

    @property
    def full(self) -> bool:
        """True once every copy has reached its quota."""
        return not self._missing_B.any()

    def add(self, transition: Transition, cut_B: BoolArray | None = None) -> None:
        """Add one step of all copies; episodes do not count that were truncated to be cut, or ended by a fault."""
        self._return_NB += np.concatenate(transition.rewards)
        self.steps_B += 1
        self._env_steps += len(self.steps_B)
        ended_B = transition.whole
        if ended_B.any():
            # An episode that was to be cut may also end by itself in that very step: then it is whole, and counts.
            counted_B = ended_B if cut_B is None else ended_B & ~(cut_B & transition.truncated)
            if transition.broken is not None:
                counted_B = counted_B & ~transition.broken
                self._broken += int((ended_B & transition.broken).sum())
            counted_B = counted_B & (self._missing_B > 0)
            self._missing_B -= counted_B
            self._episode_steps += int(self.steps_B[counted_B].sum())
            self._sum_N += self._return_NB[:, counted_B].sum(axis=1)
            self._spread(self._return_NB[:, counted_B])
            if transition.won is not None:
                self._judged += int(counted_B.sum())
                self._wins += int((counted_B & transition.won).sum())
            self._return_NB[:, ended_B] = 0.0
            self.steps_B[ended_B] = 0

    def _spread(self, return_NE: NDArray[np.float64]) -> None:
        """Add E finished episodes: their number, and mean and scatter of R = N + 1 rows, the agents and their mean.

        Source: Chan, Golub and LeVeque 1983, eq. 2.1b.
        """
        before, more = self.episodes, return_NE.shape[1]
        self.episodes += more
        if more:
            return_RE = np.concatenate([return_NE, return_NE.mean(axis=0, keepdims=True)])
            mean_R1 = return_RE.mean(axis=1, keepdims=True)
            moved_R = mean_R1[:, 0] - self._mean_R
            # squares beyond float64 leave no standard error; returns that are no numbers are refused by `stats`
            with np.errstate(over="ignore", invalid="ignore"):
                self._mean_R += moved_R * (more / self.episodes)
                self._scatter_R += np.square(return_RE - mean_R1).sum(axis=1)
                self._scatter_R += np.square(moved_R) * (before * more / self.episodes)

    def stats(self) -> EpisodeStats:
        """The sums since the last call; raises SpecError if a return is not finite."""
        for agent, total in zip(self._agents, self._sum_N.tolist(), strict=True):
            if not math.isfinite(total):
                raise SpecError(f"the environment is broken: the rewards of {agent} add up to {total}")
        found = EpisodeStats(
            env_steps=self._env_steps,
            episodes=self.episodes,
            episode_steps=self._episode_steps,
            return_sum=dict(zip(self._agents, self._sum_N.tolist(), strict=True)),
            return_scatter=dict(zip(self._agents, self._scatter_R[:-1].tolist(), strict=True)),
            mean_scatter=float(self._scatter_R[-1]),
            judged=self._judged,
            wins=self._wins,
            broken=self._broken,
        )
        self._clear()
        return found

    def given_up(self) -> EpisodeStats:
        """The `stats` of play that does not come to its end: its env steps, and no episode.

        Those that have ended are the short ones, so their mean would not be that of all.
        """
        nothing = dict.fromkeys(self._agents, 0.0)
        found = replace(self.stats(), episodes=0, episode_steps=0, judged=0, wins=0)
        return replace(found, return_sum=nothing, return_scatter=nothing, mean_scatter=0.0)

    def _clear(self) -> None:
        self._sum_N = np.zeros(len(self._agents))
        self._mean_R, self._scatter_R = np.zeros(len(self._agents) + 1), np.zeros(len(self._agents) + 1)
        self.episodes = 0
        """Number of finished episodes that count."""
        self._env_steps = self._episode_steps = self._judged = self._wins = self._broken = 0
