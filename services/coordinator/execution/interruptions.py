"""What keeps a job from going on. Cancellation: its present step may finish within a grace period, and is abandoned
after that. Backoff at transient errors: a service is down, hangs, is full, or has restarted without its state.

A step that takes long is shown to watchers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from marless.core.errors import (
    CancelledJobError,
    FencedError,
    MarlessError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    StaleError,
    UnauthenticatedError,
    UnreachableError,
)
from marless.rpc.concurrency import delays, pause_s

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


PASSING = (
    UnreachableError,
    NotFoundError,
    StaleError,
    FencedError,
    OverloadedError,
    UnauthenticatedError,
    PermissionDeniedError,
)
"""Transient errors: the round is retried. NotFoundError: the learner pool does not know the job, or the store lacks its
versions; StaleError: trajectories were lost with their learner pool; FencedError: an epoch ended with the versions that
a restore dropped; OverloadedError: others use the room; UnauthenticatedError and PermissionDeniedError: a change of
tokens has not reached every service yet."""


class Backoff:
    """Waits for growing delays between attempts, and gives up after `patience_s` seconds without a success."""

    def __init__(self, patience_s: float, cancelled: asyncio.Event) -> None:
        self._patience_s = patience_s
        self._cancelled = cancelled
        self.reset()

    def reset(self) -> None:
        """Reset after a success: the next error starts a new sequence of delays."""
        self._since_s: float | None = None
        self._last_s = 0.0
        self._delays = delays()

    @property
    def waiting(self) -> bool:
        """True from an error until the next success."""
        return self._since_s is not None

    async def wait(self, trouble: MarlessError) -> None:
        """Wait before the next attempt; raises `trouble` if the time is up, CancelledJobError if cancelled."""
        now_s = time.monotonic()
        if now_s - self._last_s >= self._patience_s:  # the last error is long past: a long step has run since
            self.reset()
        if self._since_s is None:
            self._since_s = now_s
        self._last_s = now_s
        if now_s - self._since_s > self._patience_s:
            raise trouble
        try:
            async with asyncio.timeout(pause_s(next(self._delays), trouble)):
                await self._cancelled.wait()
        except TimeoutError:
            return
        raise CancelledJobError("cancelled by its user")


def doing(trouble: MarlessError) -> str:
    """The `reason` that a job shows while it retries. Errors of `Peer` start with the name of the failed service."""
    sentence = str(trouble)
    if sentence.partition(":")[0] in ("actor_pool", "learner_pool", "param_store"):
        return f"waits for the {sentence}"
    if isinstance(trouble, OverloadedError):
        return f"waits for {sentence.removeprefix('no ')}"
    return f"tries again: {sentence}"
