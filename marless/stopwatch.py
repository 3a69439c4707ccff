"""How long something takes, by a clock that nobody sets, and when it began, for people.

The wall clock of a machine jumps: somebody sets it, or it is corrected a while after the machine has started. So what
is decided from and what is billed is always the difference of two readings of the monotonic clock in one process; the
wall clock is read once, at the beginning, and says only when that was.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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


class RunningTime:
    """Seconds that the calling thread has run or slept since this was made, without those that it was ready to run and
    other processes had the CPUs. To be read in the thread that made it.
    """

    def __init__(self) -> None:
        self._watch, self._waited_s = Stopwatch.start(), _waited_for_cpu_s()

    @property
    def seconds(self) -> float:
        """Never negative."""
        return max(self._watch.seconds - (_waited_for_cpu_s() - self._waited_s), 0.0)


def _waited_for_cpu_s() -> float:
    """Of this thread, as Linux counts it; 0 where nobody does, so that all of the time counts as run."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0
