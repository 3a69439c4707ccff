"""Runs the functions that an algorithm declares for an update, and measures them.

Dependencies run first, independent functions concurrently. A *pass* computes one or several functions of one kind at
once, for policies or critics stacked in one tensor. Times are summed over the passes of many gradient steps, and the
metrics of gradient steps are averaged.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from marless.core.group import FunctionKind, FunctionNode, FunctionRun
from marless.core.interruption import Stopped, check, never
from marless.core.stopwatch import Stopwatch
from marless.learning.algos.learner import RoundInput
from marless.learning.nets.learner_states import Row

ONE_THREAD = 4_500_000
"""Largest work of a pass, as `threads_for` counts it, for which all passes run on one thread: the code between their
kernels holds the interpreter's lock, so that two threads would wait for each other for longer than they save. Measured
on two CPUs with perceptrons of [64, 64], [256, 256] and [512, 512], and with recurrent nets of [64, 64].
"""
UPDATE_STEPS = 10
"""The optimizer's step of a net takes as long as computing on so many samples."""
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Pass(Generic[ResultT]):
    """A computation of one or several functions of one kind."""

    function: FunctionKind
    names: tuple[str, ...]
    """The policies, critics or mixers that it serves."""
    compute: Callable[[], ResultT]

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the declared functions that it computes."""
        return tuple(f"{self.function}/{name}" for name in self.names)


class Graph:
    """The declared functions of one update, and their measured times."""

    def __init__(
        self,
        nodes: Sequence[FunctionNode],
        *,
        threads: int = 1,
        meter: PassTimer | None = None,
        stopped: Stopped = never,
    ) -> None:
        """Make a graph of `nodes`, whose passes run on at most so many threads; results must not depend on it.

        `meter` measures the passes, by default a new one. No pass starts once `stopped` returns True.
        """
        self._nodes = {node.id: node for node in nodes}
        self._threads, self._stopped = threads, stopped
        self._meter = meter or PassTimer()

    def run(self, passes: Sequence[Pass[ResultT]]) -> list[ResultT]:
        """Run passes, which must be in topological order; returns their results in the same order.

        May be called repeatedly, for each gradient step. Raises ValueError for a pass that is not declared or precedes
        one that it depends on, StoppedError, and the errors of passes.
        """
        waits = self._waits(passes)
        if self._threads == 1 or len(passes) == 1:
            return [self._measured(each) for each in passes]
        started: list[Future[ResultT]] = []
        with ThreadPoolExecutor(min(self._threads, len(passes))) as pool:
            # Threads take passes in this order, so the oldest unfinished one never waits, and there is no deadlock.
            for each, sources in zip(passes, waits, strict=True):
                started.append(pool.submit(self._after, each, [started[index] for index in sources]))
        return [future.result() for future in started]

    def runs(self) -> tuple[FunctionRun, ...]:
        """The executed functions in declared order; raises ValueError if a declared function did not run."""
        ran = {f"{run.function}/{run.name}": run for run in self._meter.runs()}
        if missing := [name for name in self._nodes if name not in ran]:
            raise ValueError(f"functions {missing} are declared, but did not run")
        return tuple(ran[name] for name in self._nodes)

    def _waits(self, passes: Sequence[Pass[ResultT]]) -> list[list[int]]:
        """The indices of each pass's predecessors."""
        if strangers := [name for each in passes for name in each.ids if name not in self._nodes]:
            raise ValueError(f"functions {strangers} are not declared; declared are {list(self._nodes)}")
        computed_by = {name: index for index, each in enumerate(passes) for name in each.ids}
        waits = []
        for index, each in enumerate(passes):
            sources = {source for name in each.ids for source in self._nodes[name].after}
            waits.append(sorted({computed_by[source] for source in sources if source in computed_by}))
            if waits[-1] and waits[-1][-1] >= index:
                raise ValueError(f"{each.ids} waits for {passes[waits[-1][-1]].ids}, which is not listed before it")
        return waits

    def _after(self, each: Pass[ResultT], sources: Sequence[Future[ResultT]]) -> ResultT:
        for source in sources:
            source.result()
        return self._measured(each)

    def _measured(self, each: Pass[ResultT]) -> ResultT:
        check(self._stopped)
        with self._meter.measure(each.function, each.names):
            return each.compute()


def threads_for(device: torch.device, parameters: int, inputs: RoundInput, minibatches: int) -> int:
    """Threads for the passes of an update with so many minibatches, of nets with so many parameters each."""
    samples = sum(len(group.agents) for group in inputs.groups) * inputs.sampled_steps / minibatches
    work = parameters * (samples + UPDATE_STEPS * len(inputs.groups))
    return 1 if device.type != "cpu" or work <= ONE_THREAD else torch.get_num_interop_threads()


Clock = Callable[[], float]
"""Returns seconds."""


@dataclass(slots=True)
class _Passes:
    """The time of one function so far, for all names that it serves in a pass together."""

    start_s: float
    end_s: float
    vcpu_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: _Passes, share: float = 1.0) -> None:
        """Add `share` of the time of other passes."""
        self.start_s, self.end_s = min(self.start_s, other.start_s), max(self.end_s, other.end_s)
        self.vcpu_s += share * other.vcpu_s
        self.cpu_s += share * other.cpu_s


class PassTimer:
    """Adds up the time of passes by function and name; thread-safe.

    `seconds` is the clock of `FunctionRun.vcpu_s`; None: wall-clock time, during which a vCPU or a GPU is occupied.
    `cpu` is that of `FunctionRun.cpu_s`: of the calling thread, not of others that it gives parts of a pass to.
    """

    def __init__(self, seconds: Clock | None = None, now: Clock | None = None, cpu: Clock = time.thread_time) -> None:
        watch = Stopwatch.start()
        self._seconds, self._cpu = seconds, cpu
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
            FunctionRun(function, name, passes.start_s, passes.end_s, passes.vcpu_s, passes.cpu_s)
            for (function, name), passes in found.items()
        )

    def clocks(self) -> tuple[float, float, float]:
        """Unix time, the reading of the clock of billed time, and that of the thread's CPU time, in seconds."""
        now_s = self._now()
        return now_s, self._seconds() if self._seconds else now_s, self._cpu()

    def add(self, key: tuple[FunctionKind, tuple[str, ...]], ended: _Passes) -> None:
        """Add a pass that has ended."""
        with self._lock:
            if known := self._passes.get(key):
                known.add(ended)
            else:
                self._passes[key] = ended


class _Pass(AbstractContextManager[None]):
    """One pass, as a class, because a generator-based context manager takes as long as a small pass itself."""

    __slots__ = ("_before_s", "_cpu_s", "_key", "_meter", "_start_s")

    def __init__(self, meter: PassTimer, key: tuple[FunctionKind, tuple[str, ...]]) -> None:
        self._meter = meter
        self._key = key

    def __enter__(self) -> None:
        self._start_s, self._before_s, self._cpu_s = self._meter.clocks()

    def __exit__(self, raised: type[BaseException] | None, *details: object) -> None:
        if raised is None:
            end_s, after_s, cpu_s = self._meter.clocks()
            self._meter.add(self._key, _Passes(self._start_s, end_s, after_s - self._before_s, cpu_s - self._cpu_s))


PRESENT = "present"
"""Name of a number beside a step's metrics: 1 for a net that had samples in the step, 0 for one whose agents were
absent in all of them. It is left out where all nets had samples."""


def step_means(steps: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of each metric, [P], over the steps that have it; `steps` have the same nets, [P] per metric.

    Where a step says who was `PRESENT`, it counts only for those nets: a batch without samples of an agent has the mean
    0, which is no value of it. A net that was never present has 0.
    """
    means = {}
    for key in dict.fromkeys(key for each in steps for key in each if key != PRESENT):
        having = [each for each in steps if key in each]
        number_SP = torch.stack([each[key] for each in having])
        if any(PRESENT in each for each in having):
            weight_SP = torch.stack([each.get(PRESENT, torch.ones_like(each[key])) for each in having])
            means[key] = (number_SP * weight_SP).sum(dim=0) / weight_SP.sum(dim=0).clamp_min(1.0)
        else:
            means[key] = number_SP.mean(dim=0)
    return means


KL_LIMIT = 1.5
"""A policy stops at the first minibatch whose estimate of KL(π_old ‖ π) exceeds this times the target."""
_TRAINED = ("flat", "first", "second", "count")
"""What a gradient step changes of a policy's row."""


class EarlyStop:
    """Which policies of a stack still take steps in an update, and the metrics of each until it stops.

    A policy has stopped by itself where it has moved far enough (`KL_LIMIT`); that minibatch takes no step. Source:
    Stable-Baselines3 (Raffin et al. 2021), whose factor that is; critics go on here.
    """

    def __init__(self, tensors: Row, target_kl: float) -> None:
        """Begin an update of these rows, which are trained in place."""
        self._tensors, self._limit = tensors, KL_LIMIT * target_kl
        self._going_P = torch.ones_like(tensors["count"], dtype=torch.bool)
        self._entered_P = self._going_P
        self._steps_P = torch.zeros_like(tensors["count"])
        self._kept = {key: tensors[key].clone() for key in _TRAINED}
        self._epoch: list[dict[str, Tensor]] = []
        self._found: dict[str, Tensor] = {}

    @property
    def over(self) -> bool:
        """True once every policy has stopped."""
        return not bool(self._going_P.any())

    def look(self, metrics: Mapping[str, Tensor]) -> None:
        """Count a minibatch, before its step, for the policies that still take steps; some of them stop here."""
        present_P = metrics.get(PRESENT, torch.ones_like(metrics["approx_kl"]))
        self._epoch.append({**metrics, PRESENT: present_P * self._going_P})
        stops_P = self._going_P & (metrics["approx_kl"] > self._limit)
        if stops_P.any():
            # The others need the stack to go on, and with it these rows: what they are now is put back at the end.
            for key, kept in self._kept.items():
                kept[stops_P] = self._tensors[key][stops_P]
        self._going_P = self._going_P & ~stops_P
        self._steps_P = self._steps_P + self._going_P

    def end_epoch(self) -> None:
        """Take the metrics of the epoch for the policies that have begun it."""
        for name, mean_P in step_means(self._epoch).items():
            self._found[name] = torch.where(self._entered_P, mean_P, self._found.get(name, mean_P))
        self._epoch, self._entered_P = [], self._going_P

    def end(self) -> dict[str, Tensor]:
        """Put back the policies that stopped; returns each policy's metrics, means over the last epoch that it began.

        `gradient_steps` is how many it took.
        """
        stopped_P = ~self._going_P
        for key, kept in self._kept.items():
            self._tensors[key][stopped_P] = kept[stopped_P]
        return {**self._found, "gradient_steps": self._steps_P.float()}
