"""Stopping rules for evaluations: by number of episodes, by standard error, or by time.

Episodes are played in batches whose sizes and seeds follow from the job alone. A slower machine plays fewer batches of
the same sequence, never different ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from marless.learning.data.returns import EpisodeReturns

TRUSTED_EPISODES = 30
"""With fewer episodes, the estimate of the standard error is too unreliable to stop by."""
_ONE_BY_ONE = 4
"""Most copies per batch if the environment steps them one after another: more save little and finish later."""


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
        if self._precise(played):
            return "error"
        expected_s = played_s / played.episodes * following
        return "time" if self.limit_s and played_s + expected_s > self.limit_s else ""

    def _precise(self, played: EpisodeReturns) -> bool:
        """True if the standard error is small enough; 0 is not trusted, as rare rewards may not have occurred yet, and
        one episode has none.
        """
        if played.episodes < TRUSTED_EPISODES or not played.standard_error:
            return False
        return played.standard_error / math.sqrt(self.parts) <= self.relative_error * abs(played.mean)


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
