"""A job's cancellation: what it does now may be finished within a grace, and is abandoned after that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marless.errors import CancelledJobError

GRACE_S = 2.0
"""Seconds in which the present round of a cancelled job may still be recorded."""
CANCELLED = "cancelled by its user"


class Cancellation:
    """Whether a job was cancelled, and how long what it does may go on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._end_s: float | None = None
        """By the loop's clock."""
        self._present: asyncio.Timeout | None = None

    def ask(self) -> None:
        """Cancel the job; twice is safe."""
        if self.asked.is_set():
            return
        self.asked.set()
        self._end_s = asyncio.get_running_loop().time() + GRACE_S
        if self._present:
            self._present.reschedule(self._end_s)

    @asynccontextmanager
    async def abandoning(self) -> AsyncIterator[None]:
        """A block that waits for others. It is cancelled when the grace is over; CancelledJobError is raised then.

        One at a time. What is in it must stand being killed.
        """
        try:
            async with asyncio.timeout_at(self._end_s) as self._present:
                yield
        except TimeoutError:
            if self._present and self._present.expired():
                raise CancelledJobError(CANCELLED) from None
            raise
        finally:
            self._present = None
