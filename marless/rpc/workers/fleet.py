"""Keeps the wanted number of workers alive, and lets them go when they have been idle for long."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable
from types import TracebackType

import structlog

from marless.errors import UnavailableError
from marless.rpc.workers.dispatch import Dispatcher
from marless.rpc.workers.launcher import Launcher, WorkerHandle

START_TIMEOUT_S = 60.0
_STILLBORN_LIMIT = 3
_log = structlog.get_logger("marless.workers")


class Fleet:
    """Workers of one pool, from launch to leave; an async context manager.

    A worker that dies is replaced at once. Workers that die three times in a row before they connect are taken for
    a broken installation: whatever waits for them fails with the reason.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        launcher: Launcher,
        *,
        prefix: str,
        limit: int,
        keep_alive_s: float,
        warm: int = 0,
    ) -> None:
        self._dispatcher = dispatcher
        self._launcher = launcher
        self._names = (f"{prefix}-{serial}" for serial in itertools.count())
        self._limit = limit
        self._keep_alive_s = keep_alive_s
        self._used_s = time.monotonic()
        self._wanted = min(warm, limit)
        self._stillborn = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._scaling = asyncio.Lock()

    async def __aenter__(self) -> Fleet:
        self._reaper = asyncio.create_task(self._reap())
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End all workers at once, which ends their streams; twice is safe."""
        self._wanted = 0
        tasks = [*self._tasks.values(), *([self._reaper] if self._reaper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def ensure(self, workers: int) -> None:
        """Start workers until there are this many or the pool's limit is reached; returns once one is connected.

        Workers that are there are never removed. Raises UnavailableError if none comes up.
        """
        self._used_s = time.monotonic()
        self._wanted = max(self._wanted, min(workers, self._limit))
        self._start()
        if not any(map(self._dispatcher.is_connected, self._tasks)):
            await self._connected(any)

    async def scale(self, workers: int) -> None:
        """Have exactly this many connected workers; those that go are drained first.

        Raises UnavailableError if they do not come up, or if more are asked for than the pool may have.
        """
        if workers > self._limit:
            raise UnavailableError(f"{workers} workers asked for; this pool may have {self._limit} (--workers)")
        async with self._scaling:
            self._wanted, self._stillborn = workers, 0
            self._start()
            for name in list(self._tasks)[workers:]:
                await self._retire(name)
            await self._connected(all)

    def _start(self) -> None:
        while len(self._tasks) < self._wanted:
            name = next(self._names)
            self._tasks[name] = asyncio.create_task(self._keep(name))

    async def _connected(self, quorum: Callable[[Iterable[bool]], bool]) -> None:
        """Wait until any or all of the workers are connected; raises UnavailableError if they cannot be."""
        tasks = dict(self._tasks)
        ready = asyncio.create_task(self._dispatcher.connected(list(tasks), quorum))
        try:
            await asyncio.wait([ready, *tasks.values()], timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            for name, task in tasks.items():
                if task.done():
                    self._tasks.pop(name, None)
                    await task  # raises why it gave up
            if not ready.done():
                raise UnavailableError(f"workers did not connect within {START_TIMEOUT_S:g} s; see the pool's log")
        finally:
            ready.cancel()

    async def _keep(self, name: str) -> None:
        while True:
            started_s = time.monotonic()
            handle = await self._launcher.launch(name)
            try:
                how = await self._until_gone(name, handle)
            finally:
                handle.kill()
            _log.warning("worker.ended", worker=name, how=how, after_s=round(time.monotonic() - started_s, 3))
            if self._stillborn >= _STILLBORN_LIMIT:
                reason = f"worker {name} could not start ({how}); see the pool's log"
                self._dispatcher.fail_waiting(reason)
                raise UnavailableError(reason)

    async def _until_gone(self, name: str, handle: WorkerHandle) -> str:
        """Until the process ends, or its stream does: a worker that was given up as hung is killed."""
        ended = asyncio.create_task(handle.ended())
        connected = asyncio.create_task(self._dispatcher.connected([name]))
        try:
            await asyncio.wait([ended, connected], return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self._stillborn += 1
                return ended.result()
            self._stillborn = 0
            gone = asyncio.create_task(self._dispatcher.disconnected(name))
            await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            return ended.result() if ended.done() else "stream ended"
        finally:
            ended.cancel()
            connected.cancel()

    async def _retire(self, name: str) -> None:
        await self._dispatcher.drain(name)
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(self._keep_alive_s, 60.0))
            idle_s = time.monotonic() - self._used_s
            if self._tasks and not self._dispatcher.busy and idle_s >= self._keep_alive_s:
                _log.info("workers.released", workers=len(self._tasks), idle_s=round(idle_s))
                await self.scale(0)
