"""Pre-warming: while learners work, the actor pool is told how many actors come next. A hint, which may be lost.

A pool keeps the workers that it has while a job uses it, so only a number above all earlier ones is worth a call.
"""

from __future__ import annotations

import asyncio

from marless.errors import MarlessError
from services.coordinator.pools import Pools


class Warming:
    """Sends the hints of one job, and waits for none of them."""

    def __init__(self, pools: Pools, *, wanted: bool) -> None:
        self._pools = pools
        self._wanted = wanted
        self._hint: asyncio.Task[None] | None = None
        self._told = 0
        """The most actors that the pool has heard of."""

    def expect(self, actors: int) -> None:
        """Have so many actors' workers started by the time they are asked for, as far as the pool has room."""
        if self._wanted and actors > self._told and (self._hint is None or self._hint.done()):
            self._hint = asyncio.create_task(self._send(actors))

    def stop(self) -> None:
        """Forget a hint that is under way; twice is safe."""
        if self._hint:
            self._hint.cancel()

    async def _send(self, actors: int) -> None:
        try:
            await self._pools.prewarm(actors)
            self._told = max(self._told, actors)
        except MarlessError:
            return  # the rollout that comes will start what it needs, or find out what is wrong
