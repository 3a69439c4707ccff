"""How a job bears trouble that passes: a service that is down, hangs, is full, or is back without its memory."""

from __future__ import annotations

import asyncio
import random
import time

from marless.errors import (
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
from marless.rpc.retry import delays, pause_s

PASSING = (
    UnreachableError,
    NotFoundError,
    StaleError,
    FencedError,
    OverloadedError,
    UnauthenticatedError,
    PermissionDeniedError,
)
"""What may be otherwise when the round is tried again. NotFoundError: a learner pool that does not know the job, a
store without its versions; StaleError: trajectories that went with their learner pool; FencedError: an epoch that ended
with the versions that a restore dropped; OverloadedError: room that others use now; UnauthenticatedError and
PermissionDeniedError: tokens that are not the same everywhere yet."""


class Patience:
    """Waits longer and longer between attempts, and gives up once there was only trouble for `patience_s`."""

    def __init__(self, patience_s: float, cancelled: asyncio.Event) -> None:
        self._patience_s = patience_s
        self._cancelled = cancelled
        self.over()

    def over(self) -> None:
        """Something was achieved: the next trouble is a new one."""
        self._since_s: float | None = None
        self._last_s = 0.0
        self._delays = delays(random.Random())  # unseeded on purpose: no result depends on it

    @property
    def waiting(self) -> bool:
        """True while there is trouble."""
        return self._since_s is not None

    async def bear(self, trouble: MarlessError) -> None:
        """Wait before the next attempt; raises `trouble` if that was the last one, CancelledJobError if cancelled."""
        now_s = time.monotonic()
        if now_s - self._last_s >= self._patience_s:  # nothing was wrong for long: a step that takes its time
            self.over()
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
    """What a job in trouble says it does. Errors of `Peer` start with the service that did not answer."""
    sentence = str(trouble)
    if sentence.partition(":")[0] in ("actor_pool", "learner_pool", "param_store"):
        return f"waits for the {sentence}"
    if isinstance(trouble, OverloadedError):
        return f"waits for {sentence.removeprefix('no ')}"
    return f"tries again: {sentence}"
