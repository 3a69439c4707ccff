"""Runs the functions that an algorithm declares for an update: dependencies first, independent ones concurrently.

A *pass* computes one or several functions of one kind at once, for policies or critics stacked in one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from marless.algos.base import FunctionKind, FunctionNode, FunctionRun
from marless.interruption import Stopped, check, never
from marless.learners.meter import Meter

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Pass(Generic[ResultT]):
    """What computes functions of one kind together."""

    function: FunctionKind
    names: tuple[str, ...]
    """The policies, critics or mixers that it serves."""
    compute: Callable[[], ResultT]

    @property
    def ids(self) -> tuple[str, ...]:
        """Of the declared functions that it computes."""
        return tuple(f"{self.function}/{name}" for name in self.names)


class Graph:
    """The functions of one update as declared, and what they took so far."""

    def __init__(
        self,
        nodes: Sequence[FunctionNode],
        *,
        threads: int = 1,
        meter: Meter | None = None,
        stopped: Stopped = never,
    ) -> None:
        """Passes run on at most `threads` threads; what they compute must not depend on the number. None begins once
        `stopped` answers True.
        """
        self._nodes = {node.id: node for node in nodes}
        self._threads = threads
        self._meter = meter or Meter()
        self._stopped = stopped

    def run(self, passes: Sequence[Pass[ResultT]]) -> list[ResultT]:
        """Run passes, listed after those that they wait for, and return their results in the order given.

        May be called again, for each gradient step. Raises ValueError for a pass that was not declared, or is listed
        too early; StoppedError; and what a pass raises.
        """
        waits = self._waits(passes)
        if self._threads == 1 or len(passes) == 1:
            return [self._measured(each) for each in passes]
        started: list[Future[ResultT]] = []
        with ThreadPoolExecutor(min(self._threads, len(passes))) as pool:
            # Threads take passes in this order, so the oldest unfinished one waits for none: no deadlock.
            for each, sources in zip(passes, waits, strict=True):
                started.append(pool.submit(self._after, each, [started[index] for index in sources]))
        return [future.result() for future in started]

    def runs(self) -> tuple[FunctionRun, ...]:
        """What ran, in the order declared; raises ValueError unless that is exactly what was declared."""
        ran = {f"{run.function}/{run.name}": run for run in self._meter.runs()}
        if missing := [name for name in self._nodes if name not in ran]:
            raise ValueError(f"functions {missing} are declared, but did not run")
        return tuple(ran[name] for name in self._nodes)

    def _waits(self, passes: Sequence[Pass[ResultT]]) -> list[list[int]]:
        """For each pass the indices of those that it waits for."""
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
