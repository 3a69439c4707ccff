"""Returns of episodes that ended in several actors: their sums, means and standard errors, and when enough were played.

The spread of returns is kept as Σ (x − mean)², which adds up without loss: from Σ x² nothing is left of the spread of
returns that are large and differ little. Episodes are played in batches whose sizes and seeds follow from the job
alone. A slower machine plays fewer batches of the same sequence, never different ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

TRUSTED_EPISODES = 30
"""With fewer episodes, the estimate of the standard error is too unreliable to stop by."""
_TWO_DECIMALS = 0.1
"""Returns from here on are shown with two decimals."""
_DECIMALS = 1e-4
"""Smaller returns are shown as 1.23e-05."""
_ONE_BY_ONE = 4
"""Most copies per batch if the environment steps them one after another: more save little and finish later."""


@dataclass(frozen=True, kw_only=True)
class EpisodeReturns:
    """Undiscounted episode returns. "Per agent" means averaged over the agents of an episode."""

    episodes: int
    mean: float
    """Per agent, averaged over episodes."""
    per_agent: Mapping[str, float]
    """Mean return of each agent, averaged over episodes."""
    standard_error: float | None
    """Standard error of `mean`, from the episodes' means over their agents; None for one episode."""
    wins: int | None = None
    """Episodes that were won; None if the environment does not report wins."""

    @property
    def win_rate(self) -> float | None:
        """Fraction of episodes that were won; None if the environment does not report wins."""
        return None if self.wins is None else self.wins / self.episodes


def return_text(mean: float, error: float | None = None) -> str:
    """A return for display, with its standard error if there is one: "-19.20 ± 0.31"."""
    form = return_format(mean, error)
    return f"{mean:{form}}" + ("" if error is None else f" ± {error:{form}}")


def return_format(*values: float | None) -> str:
    """The format of returns that stand side by side: two decimals, or three digits of the largest if that says more."""
    largest = max((abs(each) for each in values if each is not None and math.isfinite(each)), default=0.0)
    # Where a step pays 0.001, two decimals would show neither the return nor its error.
    if largest >= _TWO_DECIMALS or not largest:
        return ",.2f"
    return f",.{2 - math.floor(math.log10(largest))}f" if largest >= _DECIMALS else ".2e"


def returns_of(actors: Iterable[EpisodeSums]) -> EpisodeReturns | None:
    """Combine the returns of all actors' episodes; None if no episode ended."""
    known = Sums.of(list(actors))
    if not known.episodes:
        return None
    means = {agent: total / known.episodes for agent, total in sorted(known.return_sum.items())}
    return EpisodeReturns(
        episodes=known.episodes,
        mean=sum(means.values()) / len(means),
        per_agent=means,
        standard_error=standard_error(known.mean_scatter, known.episodes),
        wins=known.wins if known.judged == known.episodes else None,
    )


class EpisodeSums(Protocol):
    """Sums over the episodes that ended in one actor; see `marless.learning.data.episodes.EpisodeStats`."""

    @property
    def episodes(self) -> int:
        """Number of episodes that ended."""

    @property
    def return_sum(self) -> Mapping[str, float]:
        """Sum of returns, per agent."""

    @property
    def return_scatter(self) -> Mapping[str, float]:
        """Sum of squared differences of returns from their mean, per agent."""

    @property
    def mean_scatter(self) -> float:
        """The same of the episodes' mean returns over all agents."""

    @property
    def judged(self) -> int:
        """Number of episodes with a known result (won or not); 0 if the environment does not report wins."""

    @property
    def wins(self) -> int:
        """Number of episodes won."""

    @property
    def broken(self) -> int:
        """Number of episodes that a fault of the environment has ended; they are in none of the sums."""


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The sums over several actors' episodes, as an `EpisodeSums`."""

    episodes: int
    return_sum: Mapping[str, float]
    return_scatter: Mapping[str, float]
    mean_scatter: float
    judged: int
    wins: int
    broken: int = 0

    @classmethod
    def of(cls, actors: Sequence[EpisodeSums]) -> Sums:
        """The sums of all these actors together."""
        returns: defaultdict[str, float] = defaultdict(float)
        for each in actors:
            for agent, value in each.return_sum.items():
                returns[agent] += value
        scatter, mean_scatter = scatters(actors)
        return cls(
            episodes=sum(each.episodes for each in actors),
            return_sum=dict(returns),
            return_scatter=scatter,
            mean_scatter=mean_scatter,
            judged=sum(each.judged for each in actors),
            wins=sum(each.wins for each in actors),
            broken=sum(each.broken for each in actors),
        )


def scatters(actors: Sequence[EpisodeSums]) -> tuple[dict[str, float], float]:
    """`return_scatter` and `mean_scatter` of several actors' episodes together."""
    known = [each for each in actors if each.episodes]
    counts = [each.episodes for each in known]
    agents = dict.fromkeys(agent for each in actors for agent in each.return_sum)
    by_agent = {
        agent: _merged(counts, [(each.return_sum[agent], each.return_scatter[agent]) for each in known])
        for agent in agents
    }
    means = [(math.fsum(each.return_sum.values()) / len(each.return_sum), each.mean_scatter) for each in known]
    return by_agent, _merged(counts, means)


def _merged(counts: Sequence[int], parts: Sequence[tuple[float, float]]) -> float:
    """Σ (x − mean)² of all parts, from (Σ x, Σ (x − mean)²) of each (Chan, Golub and LeVeque 1983, eq. 2.1b)."""
    if not counts:
        return 0.0  # no episode has ended
    mean = math.fsum(total for total, _ in parts) / sum(counts)
    moved = [total / count - mean for count, (total, _) in zip(counts, parts, strict=True)]
    # a product beyond float64 is infinite, a power of it an exception
    return sum(scatter + count * (by * by) for count, (_, scatter), by in zip(counts, parts, moved, strict=True))


def standard_error(scatter: float, episodes: int) -> float | None:
    """Standard error of a mean over episodes, from Σ (x − mean)²: the deviation of the population is estimated (n − 1).

    None for one episode, which says nothing of it, and for returns whose squares are beyond float64.
    """
    if episodes < 2 or not math.isfinite(scatter):
        return None
    return math.sqrt(scatter / (episodes - 1) / episodes)


@dataclass(frozen=True, kw_only=True)
class PlayLimits:
    """The stopping rules for one actor, or for an evaluation as a whole."""

    episodes: int
    """Most episodes to play."""
    limit_s: float = 0.0
    """Seconds of play after which no further batch starts; 0: no limit."""
    relative_error: float = 0.0
    """Sufficient standard error, as a fraction of |mean|; 0: play all episodes."""
    parts: int = 1
    """Number of actors that share the evaluation. Each may have √parts times the standard error of all together."""

    def reached(self, played: EpisodeReturns | None, played_s: float, following: int) -> str:
        """The rule that stops play before a batch of `following` episodes: "episodes", "error" or "time"; "" if none.

        `played_s` is the time spent so far in seconds. A batch that would probably exceed the time limit, judging by
        those before it, is not started; the first batch always is.
        """
        if played is None:
            return ""
        if played.episodes >= self.episodes:
            return "episodes"
        # One episode has no standard error; 0 is not trusted, as rare rewards may not have occurred yet.
        if (
            played.episodes >= TRUSTED_EPISODES
            and played.standard_error
            and played.standard_error / math.sqrt(self.parts) <= self.relative_error * abs(played.mean)
        ):
            return "error"
        expected_s = played_s / played.episodes * following
        return "time" if self.limit_s and played_s + expected_s > self.limit_s else ""


def batches(episodes: int, copies: int, *, one_by_one: bool) -> Iterator[int]:
    """The sizes of the batches for this many episodes, with one episode in each copy of the environment.

    `one_by_one` means that the environment steps its copies one after another. Then the first batches have one and two
    episodes, so that first results come early.
    """
    most, size = (min(copies, _ONE_BY_ONE), 1) if one_by_one else (copies, copies)
    while episodes > 0:
        yield min(size, episodes)
        episodes -= size
        size = min(2 * size, most)
