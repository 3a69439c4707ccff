"""Pre-warming: during an update, asks the actor pool to start workers for the next actors. Requests may get lost.

A pool keeps its workers while a job uses them, so a request is sent only for a number above all earlier ones.
"""

from __future__ import annotations

import asyncio

from marless.core.errors import MarlessError
from services.coordinator.execution.pools import Pools


class Prewarming:
    """Sends the pre-warming requests of one job, in the background."""

    def __init__(self, pools: Pools, job_id: str, *, wanted: bool) -> None:
        self._pools = pools
        self._id = job_id
        self._wanted = wanted
        self._hint: asyncio.Task[None] | None = None
        self._told = 0
        """The highest number of actors that the pool has acknowledged."""

    def expect(self, actors: int) -> None:
        """Ask for workers for `actors` actors, unless pre-warming is off or as many were asked for before."""
        if self._wanted and actors > self._told and (self._hint is None or self._hint.done()):
            self._hint = asyncio.create_task(self._send(actors))

    def stop(self) -> None:
        """Cancel a request that is under way; calling it twice is safe."""
        if self._hint:
            self._hint.cancel()

    async def _send(self, actors: int) -> None:
        try:
            await self._pools.prewarm(self._id, actors)
            self._told = max(self._told, actors)
        except MarlessError:
            return  # the next rollout starts the workers that it needs, or raises the error
