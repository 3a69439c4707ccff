"""Makes what a job has written durable while the job goes on, and tells watchers only then.

A round is written while the next rollout runs, which publishes nothing; it is durable before the next update begins. On
a disk, everything is durable as soon as it is written, and nothing here waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from marless.rpc.concurrency import to_the_end
from services.coordinator.state.base import DurableJob


class Flusher:
    """Settles one job's folder in the background."""

    def __init__(self, folder: DurableJob) -> None:
        self._folder = folder
        self._under_way: asyncio.Task[None] | None = None
        self._then: list[Callable[[], None]] = []

    def begin(self, then: Callable[[], None] = lambda: None) -> None:
        """Begin to make durable what was written so far, and call `then` once it is."""
        if self._folder.settled:
            then()
            return
        self._then.append(then)
        self._under_way = asyncio.create_task(self._flush(self._under_way))

    async def done(self) -> None:
        """Wait until all that was begun is durable; raises what `DurableJob.flush` raises."""
        # Taken out before it is awaited: its error is raised once, and the next call tries again.
        under_way, self._under_way = self._under_way, None
        if under_way:
            await under_way
        if self._then:  # an earlier attempt has failed
            await self._flush(None)

    async def all(self) -> None:
        """Wait until all that was written is durable; raises as `done`."""
        await self.done()
        if not self._folder.settled:
            await self._flush(None)

    async def stop(self) -> None:
        """Wait for what is under way, whether or not it fails."""
        if self._under_way:
            await asyncio.wait([self._under_way])
            self._under_way.exception()

    async def _flush(self, before: asyncio.Task[None] | None) -> None:
        if before:
            await before
        then, self._then = self._then, []
        try:
            await to_the_end(self._folder.flush)
        # What is not durable yet is told by the next attempt, in the same order.
        except BaseException:
            self._then = then + self._then
            raise
        for call in then:
            call()
