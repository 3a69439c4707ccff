"""Trying again: only what is safe to repeat, only when the other side cannot be reached, and never for ever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from marless.errors import UnavailableError

FIRST_DELAY_S = 0.02
LONGEST_DELAY_S = 1.0
Result = TypeVar("Result")


def delays(jitter: random.Random) -> Iterator[float]:
    """Seconds to wait before each further attempt: doubling, capped, and drawn from the upper half of each step."""
    delay = FIRST_DELAY_S
    while True:
        yield delay * jitter.uniform(0.5, 1.0)
        delay = min(2 * delay, LONGEST_DELAY_S)


async def retry(operation: Callable[[], Awaitable[Result]], *, patience_s: float) -> Result:
    """Repeat an idempotent operation while it raises UnavailableError; after `patience_s` that error is raised."""
    give_up = time.monotonic() + patience_s
    # Unseeded on purpose: jitter must differ between processes, and no result depends on it.
    for delay in delays(random.Random()):
        try:
            return await operation()
        except UnavailableError:
            if time.monotonic() + delay > give_up:
                raise
        await asyncio.sleep(delay)
    raise AssertionError("delays never end")
