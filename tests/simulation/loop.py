"""An event loop on virtual time, and the simulated processes that share it.

Nothing is waited for: when no callback is ready, the clock jumps to the next timer. Each callback belongs to the
process in whose context it was scheduled. Callbacks of a killed process are dropped, so that it does not tidy up, as
after signal 9; those of a paused one are kept until it goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

START_S = 1_800_000_000.0
"""Unix time at which a simulation begins."""
THREAD_S = (0.0, 0.002)
"""Seconds that a thread takes to begin, and to be heard of after it has ended."""
SLOW_S = 2.0
"""Seconds that a slow thread takes at most."""
_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class StuckError(Exception):
    """No callback is ready, and no timer is set."""


class KilledError(BaseException):
    """Ends what a process is doing at the failpoint where it is killed."""


def present() -> Process | None:
    """The process whose code runs now; None outside of all."""
    return _process.get()


class Process:
    """A simulated process: its tasks, and whether they run."""

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.ended: list[Callable[[], None]] = []
        """Called once it is dead."""
        self._loop = loop
        self._held: deque[asyncio.Handle] | None = None
        self._context = contextvars.Context()
        self._context.run(_process.set, self)

    @property
    def paused(self) -> bool:
        return self._held is not None

    @property
    def runs(self) -> bool:
        return self.alive and self._held is None

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run its main task; it has ended when that has."""
        task = self._loop.create_task(coroutine, context=self._context.copy())
        task.add_done_callback(lambda _: self.kill(), context=contextvars.Context())
        return task

    def later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call back within this process, unless it is dead by then."""
        if delay_s > 0.0:
            self._loop.call_later(delay_s, callback, context=self._context)
        else:
            self._loop.call_soon(callback, context=self._context)

    def hold(self, handle: asyncio.Handle) -> None:
        """Take a callback that cannot run now."""
        if self._held is not None and self.alive:
            self._held.append(handle)

    def pause(self) -> None:
        self._held = deque() if self._held is None else self._held

    def go_on(self) -> None:
        held, self._held = self._held or deque(), None
        self._loop.again(held)

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self._held = None
            for each in self.ended:
                each()


class _Task(asyncio.Task[Any]):
    """A task with a number as its hash, so that sets of tasks have the same order in every run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, **kwargs: Any) -> None:
        self.number = number
        super().__init__(coroutine, **kwargs)

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in order of virtual time. `chance` draws the durations of threads."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._now_s = 0.0
        self._number = 0
        self.tasks: list[_Task] = []
        """All tasks ever made: those of killed processes must not be collected, which would run their clean-up."""
        self.slow = 0.0
        """Probability that a thread is slow, as on a busy machine."""
        self.events = 0
        """Callbacks that have run."""
        self.observe: Callable[[], None] = lambda: None
        """Called after each of them."""
        self.set_task_factory(self._task)

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        self._number = future.number = self._number + 1
        return future

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **kwargs: Any) -> _Task:
        self._number += 1
        task = _Task(coroutine, self._number, loop=self, **kwargs)
        self.tasks.append(task)
        return task

    def again(self, handles: deque[asyncio.Handle]) -> None:
        """Run callbacks that were held."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function as a thread does: a moment later, all at once, also if its caller is cancelled meanwhile."""
        future, starts_early = self.create_future(), self._chance.random() < 0.5

        def run() -> None:
            if future.cancelled() and not starts_early:
                return
            result, error = None, None
            try:
                result = function(*args)
            except KilledError:
                return
            except BaseException as problem:  # noqa: BLE001  # passed on
                error = problem
            self.call_later(self._chance.uniform(*THREAD_S), _settle, future, result, error)

        self.call_later(self._begins_s(), run)
        return future

    def _begins_s(self) -> float:
        """Seconds until a thread begins."""
        if self.slow and self._chance.random() < self.slow:
            return self._chance.uniform(0.0, SLOW_S)
        return self._chance.uniform(*THREAD_S)

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise StuckError("no callback is ready, and no timer is set")
            self._now_s = max(self._now_s, timers[0].when())
        while timers and timers[0].when() <= self._now_s:
            timer = heapq.heappop(timers)
            if not timer._cancelled:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            owner: Process | None = handle._context.get(_process)
            if owner is not None and not owner.runs:
                owner.hold(handle)
                continue
            self.events += 1
            handle._run()
            self.observe()

    def _process_events(self, event_list: Any) -> None:
        """There are no files to watch."""

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when they are due."""


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def nobody() -> contextvars.Context:
    """A context that belongs to no process: its callbacks run whatever happens to processes."""
    return contextvars.Context()
