"""What the functions of an update took: the seconds of their passes, added up over many gradient steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from marless.algos.base import FunctionKind, FunctionRun

Clock = Callable[[], float]
"""Seconds."""


@dataclass
class _Passes:
    """What one function took so far."""

    start_s: float
    end_s: float
    vcpu_s: float = 0.0


class Meter:
    """Adds up passes by function and name; passes of several threads may be measured at the same time.

    `seconds` tells what is billed; none is wall-clock time, as a vCPU or a GPU is held that long. `time.thread_time`
    leaves out what a thread waits for others.
    """

    def __init__(self, seconds: Clock | None = None, now: Clock = time.time) -> None:
        self._seconds = seconds
        self._now = now
        self._passes: dict[tuple[FunctionKind, str], _Passes] = {}
        self._lock = threading.Lock()

    @contextmanager
    def measure(self, function: FunctionKind, names: Sequence[str]) -> Iterator[None]:
        """Count what happens inside as one pass of `function`, shared evenly by the `names` that it serves.

        A pass that raises is not counted. Passes must not be nested: each would count the seconds of the inner one.
        """
        start_s = self._now()
        before_s = self._seconds() if self._seconds else start_s
        yield
        end_s = self._now()
        share_s = ((self._seconds() if self._seconds else end_s) - before_s) / len(names)
        with self._lock:
            for name in names:
                passes = self._passes.setdefault((function, name), _Passes(start_s, end_s))
                passes.start_s, passes.end_s = min(passes.start_s, start_s), max(passes.end_s, end_s)
                passes.vcpu_s += share_s

    def runs(self) -> tuple[FunctionRun, ...]:
        """One per function and name, in the order in which their first passes ended."""
        with self._lock:
            return tuple(
                FunctionRun(function, name, passes.start_s, passes.end_s, passes.vcpu_s)
                for (function, name), passes in self._passes.items()
            )
