"""Cancellation of a job: its present step may finish within a grace period, and is abandoned after that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marless.errors import CancelledJobError

GRACE_S = 2.0
"""Seconds in which the present round of a cancelled job may still be recorded."""
CANCELLED = "cancelled by its user"


class Cancellation:
    """Whether a job was cancelled, and until when its present step may continue."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._end_s: float | None = None
        """End of the grace period, by the event loop's clock."""
        self._present: set[asyncio.Timeout] = set()

    def ask(self) -> None:
        """Cancel the job; calling it twice is safe."""
        if self.asked.is_set():
            return
        self.asked.set()
        self._end_s = asyncio.get_running_loop().time() + GRACE_S
        for each in self._present:
            each.reschedule(self._end_s)

    @asynccontextmanager
    async def abandoning(self) -> AsyncIterator[None]:
        """Bound a block that waits for other services: raises CancelledJobError when the grace period is over.

        Its body must tolerate being cancelled at any `await`.
        """
        limit = asyncio.timeout_at(self._end_s)
        try:
            async with limit:
                self._present.add(limit)
                yield
        except TimeoutError:
            if limit.expired():
                raise CancelledJobError(CANCELLED) from None
            raise
        finally:
            self._present.discard(limit)
