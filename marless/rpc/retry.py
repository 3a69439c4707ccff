"""Trying again: only what is safe to repeat, only when the other side cannot be reached or has no room now, and never
for ever.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from marless.errors import MarlessError, OverloadedError, UnavailableError

FIRST_DELAY_S = 0.02
LONGEST_DELAY_S = 1.0
Result = TypeVar("Result")


def delays(jitter: random.Random) -> Iterator[float]:
    """Seconds to wait before each further attempt: doubling, capped, and drawn from the upper half of each step."""
    delay = FIRST_DELAY_S
    while True:
        yield delay * jitter.uniform(0.5, 1.0)
        delay = min(2 * delay, LONGEST_DELAY_S)


def pause_s(delay_s: float, trouble: MarlessError) -> float:
    """Seconds to wait after `trouble`: `delay_s`, or as long as the one who had no room asks for if that is more."""
    return max(delay_s, trouble.retry_after_s) if isinstance(trouble, OverloadedError) else delay_s


async def retry(operation: Callable[[], Awaitable[Result]], *, patience_s: float) -> Result:
    """Repeat an idempotent operation while it raises UnavailableError or OverloadedError; after `patience_s`, or if
    the next attempt would come later than that, the error is raised.
    """
    give_up = time.monotonic() + patience_s
    # Unseeded on purpose: jitter must differ between processes, and no result depends on it.
    for delay in delays(random.Random()):
        try:
            return await operation()
        except (UnavailableError, OverloadedError) as trouble:
            pause = pause_s(delay, trouble)
            if time.monotonic() + pause > give_up:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("delays never end")
