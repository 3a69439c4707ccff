"""Cancellation of a job: its present step may finish within a grace period, and is abandoned after that.

A step that takes long is shown to watchers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from marless.core.errors import CancelledJobError

GRACE_S = 2.0
"""Seconds in which the present round of a cancelled job may still be recorded."""
SHOWN_AFTER_S = 1.0
"""Seconds after which watchers are told what a job is doing, or waits for."""
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
        # A block that is entered after the request gets the rest of the grace period, not a new one.
        limit = asyncio.timeout_at(self._end_s)
        try:
            async with limit:
                self._present.add(limit)
                yield
        except TimeoutError:
            # A TimeoutError of the block itself has nothing to do with the cancellation.
            if limit.expired():
                raise CancelledJobError(CANCELLED) from None
            raise
        finally:
            self._present.discard(limit)


class Steps:
    """The steps of one job; `show` is called with the job's new `reason`."""

    def __init__(self, cancellation: Cancellation, show: Callable[[str], None]) -> None:
        self._cancellation = cancellation
        self._show = show

    @asynccontextmanager
    async def step(self, round_: int, doing: str) -> AsyncIterator[None]:
        """Wrap a step of a round: show it if it takes longer than SHOWN_AFTER_S, abandon it if the job is cancelled."""
        late = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show, f"round {round_ + 1}: {doing}")
        try:
            async with self._cancellation.abandoning():
                yield
        finally:
            late.cancel()
