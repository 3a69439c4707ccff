"""How long episodes are played to measure a return: until enough of them, until the mean is precise, or until the time
is up.

Episodes come in batches whose sizes and seeds follow from the job alone. So a machine that is slower plays fewer
batches, and never other ones: more time only adds to the same sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from marless.record import Returns

TRUSTED_EPISODES = 30
"""A standard error from fewer episodes than these says too little to stop by."""
_ONE_BY_ONE = 4
"""Copies of an environment that steps them one after another: more save little and end later."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """When an actor, or a measurement as a whole, has played enough."""

    episodes: int
    """At most."""
    limit_s: float = 0.0
    """Seconds of play after which no further batch starts; 0: no limit."""
    relative_error: float = 0.0
    """A standard error of this fraction of |mean| suffices; 0: all episodes are played."""
    parts: int = 1
    """Actors that share the measurement: each of them may be less precise than all together."""

    def reached(self, played: Returns | None, played_s: float, following: int) -> str:
        """Which bound ends the play before a batch of `following` episodes: "episodes", "error" or "time"; "" if none.

        A batch that would not end in time, going by those before it, is not started, but for the first one.
        """
        if played is None:
            return ""
        if played.episodes >= self.episodes:
            return "episodes"
        if self._precise(played):
            return "error"
        expected_s = played_s / played.episodes * following
        return "time" if self.limit_s and played_s + expected_s > self.limit_s else ""

    def _precise(self, played: Returns) -> bool:
        """An error of exactly 0 proves nothing: rewards may be too rare to have been seen."""
        if played.episodes < TRUSTED_EPISODES or not played.standard_error:
            return False
        return played.standard_error / math.sqrt(self.parts) <= self.relative_error * abs(played.mean)


def batches(episodes: int, copies: int, *, one_by_one: bool) -> Iterator[int]:
    """The sizes of the batches in which so many episodes are played, an episode in each copy of the environment.

    `one_by_one` says that copies are stepped one after another: then the first batches are one and two episodes, so
    that something is known as early as possible.
    """
    most, size = (min(copies, _ONE_BY_ONE), 1) if one_by_one else (copies, copies)
    while episodes > 0:
        yield min(size, episodes)
        episodes -= size
        size = min(2 * size, most)
