"""Measures the time of the functions of an update, summed over their passes in many gradient steps.

Metrics of the gradient steps of an update, as means over the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.core.group import FunctionKind, FunctionRun
from marless.core.stopwatch import Stopwatch

Clock = Callable[[], float]
"""Returns seconds."""


@dataclass(slots=True)
class _Passes:
    """The time of one function so far, for all names that it serves in a pass together."""

    start_s: float
    end_s: float
    vcpu_s: float = 0.0

    def add(self, other: _Passes, share: float = 1.0) -> None:
        """Add `share` of the time of other passes."""
        self.start_s, self.end_s = min(self.start_s, other.start_s), max(self.end_s, other.end_s)
        self.vcpu_s += share * other.vcpu_s


class PassTimer:
    """Adds up the time of passes by function and name; thread-safe.

    `seconds` is the clock of billed time; None: wall-clock time, during which a vCPU or a GPU is occupied. With
    `time.thread_time`, the time in which a thread waits is not billed.
    """

    def __init__(self, seconds: Clock | None = None, now: Clock | None = None) -> None:
        watch = Stopwatch.start()
        self._seconds = seconds
        self._now = now or (lambda: watch.now_s)
        self._passes: dict[tuple[FunctionKind, tuple[str, ...]], _Passes] = {}
        self._lock = threading.Lock()

    def measure(self, function: FunctionKind, names: Sequence[str]) -> AbstractContextManager[None]:
        """Measure a block as one pass of `function`, divided evenly among the `names` that it serves.

        A pass that raises is not counted. Passes must not be nested, because the inner time would count twice.
        """
        return _Pass(self, (function, tuple(names)))

    def runs(self) -> tuple[FunctionRun, ...]:
        """One run per function and name, in the order in which their first passes ended."""
        found: dict[tuple[FunctionKind, str], _Passes] = {}
        with self._lock:
            for (function, names), passes in self._passes.items():
                for name in names:
                    mine = found.setdefault((function, name), _Passes(passes.start_s, passes.end_s))
                    mine.add(passes, 1 / len(names))
        return tuple(
            FunctionRun(function, name, passes.start_s, passes.end_s, passes.vcpu_s)
            for (function, name), passes in found.items()
        )

    def clocks(self) -> tuple[float, float]:
        """Unix time, and the reading of the clock of billed time, in seconds."""
        now_s = self._now()
        return now_s, self._seconds() if self._seconds else now_s

    def add(self, key: tuple[FunctionKind, tuple[str, ...]], ended: _Passes) -> None:
        """Add a pass that has ended."""
        with self._lock:
            if known := self._passes.get(key):
                known.add(ended)
            else:
                self._passes[key] = ended


class _Pass(AbstractContextManager[None]):
    """One pass, as a class, because a generator-based context manager takes as long as a small pass itself."""

    __slots__ = ("_before_s", "_key", "_meter", "_start_s")

    def __init__(self, meter: PassTimer, key: tuple[FunctionKind, tuple[str, ...]]) -> None:
        self._meter = meter
        self._key = key

    def __enter__(self) -> None:
        self._start_s, self._before_s = self._meter.clocks()

    def __exit__(self, raised: type[BaseException] | None, *details: object) -> None:
        if raised is None:
            end_s, after_s = self._meter.clocks()
            self._meter.add(self._key, _Passes(self._start_s, end_s, after_s - self._before_s))


PRESENT = "present"
"""Name of a number beside a step's metrics: 1 for a net that had samples in the step, 0 for one whose agents were
absent in all of them. It is left out where all nets had samples."""


def step_means(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of each metric, [P], over the steps that have it; `steps` have the same nets, [P] per metric.

    Where a step says who was `PRESENT`, it counts only for those nets: a batch without samples of an agent has the mean
    0, which is no value of it. A net that was never present has 0.
    """
    keys = dict.fromkeys(key for each in steps for key in each if key != PRESENT)
    return {key: _mean([each for each in steps if key in each], key) for key in keys}


def _mean(steps: Sequence[Mapping[str, Tensor]], key: str) -> Tensor:
    number_SP = torch.stack([each[key] for each in steps])
    if not any(PRESENT in each for each in steps):
        return number_SP.mean(dim=0)
    weight_SP = torch.stack([each.get(PRESENT, torch.ones_like(each[key])) for each in steps])
    return (number_SP * weight_SP).sum(dim=0) / weight_SP.sum(dim=0).clamp_min(1.0)
