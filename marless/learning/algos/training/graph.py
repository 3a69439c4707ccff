"""Runs the functions that an algorithm declares for an update: dependencies first, independent ones concurrently.

A *pass* computes one or several functions of one kind at once, for policies or critics stacked in one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from marless.core.group import FunctionKind, FunctionNode, FunctionRun
from marless.core.interruption import Stopped, check, never
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.training.meter import PassTimer

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
        """Make a graph of `nodes`.

        Args:
            threads: Maximum number of threads for passes; results must not depend on it.
            meter: Measures the passes; None: a new one.
            stopped: No pass starts once it returns True.
        """
        self._nodes = {node.id: node for node in nodes}
        self._threads = threads
        self._meter = meter or PassTimer()
        self._stopped = stopped

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
    env_steps = sum(each.env_steps for each in inputs.trajectories)
    samples = sum(len(group.agents) for group in inputs.groups) * env_steps / minibatches
    work = parameters * (samples + UPDATE_STEPS * len(inputs.groups))
    return 1 if device.type != "cpu" or work <= ONE_THREAD else torch.get_num_interop_threads()
