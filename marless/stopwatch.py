"""How long something takes, by a clock that nobody sets, and when it began, for people.

The wall clock of a machine jumps: somebody sets it, or it is corrected a while after the machine has started. So what
is decided from and what is billed is always the difference of two readings of the monotonic clock in one process; the
wall clock is read once, at the beginning, and says only when that was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Stopwatch:
    """Runs from the moment that it was started."""

    started_s: float
    """Unix seconds."""
    _since_s: float
    """The same moment by the monotonic clock."""

    @classmethod
    def start(cls, already_s: float = 0.0) -> Self:
        """From now on; or as if it had been started `already_s` seconds ago."""
        return cls(time.time() - already_s, time.monotonic() - already_s)

    @property
    def seconds(self) -> float:
        """Since it was started; never negative."""
        return time.monotonic() - self._since_s

    @property
    def now_s(self) -> float:
        """Unix seconds, by a wall clock that was not set since: never before `started_s`."""
        return self.started_s + self.seconds
