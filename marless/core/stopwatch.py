"""Measures durations by the monotonic clock, and notes the wall-clock time at which they began.

The wall clock of a machine can jump: it is set by hand, or corrected a while after the machine has started. Therefore
decisions and bills use only differences of two readings of the monotonic clock in one process; the wall clock is read
once, at the beginning, to tell when that was.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Stopwatch:
    """Measures the time since it was started."""

    started_s: float
    """When it was started, in Unix seconds."""
    _since_s: float
    """The same moment by the monotonic clock, in seconds."""

    @classmethod
    def start(cls, already_s: float = 0.0) -> Self:
        """Start a stopwatch now, or as if it had been started `already_s` seconds ago."""
        return cls(time.time() - already_s, time.monotonic() - already_s)

    @property
    def seconds(self) -> float:
        """Seconds since it was started; never negative."""
        return time.monotonic() - self._since_s

    @property
    def now_s(self) -> float:
        """The current time in Unix seconds, unaffected by wall-clock jumps since the start."""
        return self.started_s + self.seconds


class RunningTime:
    """Measures the time that the calling thread has run or slept, without the time that it waited for a free CPU.

    Must be read in the thread that created it.
    """

    def __init__(self) -> None:
        self._watch, self._waited_s = Stopwatch.start(), _waited_for_cpu_s()

    @property
    def seconds(self) -> float:
        """Seconds since it was created, without time spent waiting for a CPU; never negative."""
        return max(self._watch.seconds - (_waited_for_cpu_s() - self._waited_s), 0.0)


def _waited_for_cpu_s() -> float:
    """Seconds that this thread was ready but waited for a CPU, from Linux's /proc; 0.0 on systems without it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0
