"""Backoff of a job at transient errors: a service is down, hangs, is full, or has restarted without its state."""

from __future__ import annotations

import asyncio
import time

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
