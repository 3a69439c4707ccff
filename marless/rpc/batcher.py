"""Sends many small things in few messages: the first goes at once, and what comes soon after it in one message."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

MOST, MOST_BYTES = 256, 2**20
"""Things in a message, and their bytes, unless one alone has more."""
PAUSE_S = 0.02
"""Seconds between two messages, unless a full one waits."""
Thing = TypeVar("Thing")


class Batcher(Generic[Thing]):
    """Things that wait to be sent, in order; who adds them sees to it that they are not too many."""

    def __init__(
        self,
        send: Callable[[Sequence[Thing]], Awaitable[None]],
        *,
        size: Callable[[Thing], int],
        pause_s: float = PAUSE_S,
    ) -> None:
        """`size` tells the bytes of a thing."""
        self._send = send
        self._size = size
        self._pause_s = pause_s
        self._waiting: deque[Thing] = deque()
        self._some, self._many = asyncio.Event(), asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, thing: Thing) -> None:
        """Have a thing sent after those that wait."""
        self._waiting.append(thing)
        self._some.set()
        if len(self._waiting) >= MOST:
            self._many.set()

    async def run(self) -> None:
        """Send what is added, one message after the other, until this is cancelled."""
        while True:
            await self._some.wait()
            began_s = time.monotonic()
            await self._send(self._next_batch())
            # Only now, because things may have been added while the message was sent.
            if not self._waiting:
                self._some.clear()
            if len(self._waiting) < MOST:
                self._many.clear()
            # The pause counts from when sending began, so that a slow message does not delay the next one still more.
            with suppress(TimeoutError):
                async with asyncio.timeout(began_s + self._pause_s - time.monotonic()):
                    await self._many.wait()

    def _next_batch(self) -> list[Thing]:
        some: list[Thing] = []
        held = 0
        while self._waiting and len(some) < MOST:
            held += self._size(self._waiting[0])
            if some and held > MOST_BYTES:
                break
            some.append(self._waiting.popleft())
        return some
