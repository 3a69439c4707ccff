"""Retries of idempotent calls while the other side is unavailable or overloaded, with back-off and a time limit."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import TypeVar

from marless.core.errors import MarlessError, OverloadedError, UnavailableError

FIRST_DELAY_S = 0.02
LONGEST_DELAY_S = 1.0
Result = TypeVar("Result")


def delays(*, first_s: float = FIRST_DELAY_S, longest_s: float = LONGEST_DELAY_S) -> Iterator[float]:
    """Exponential back-off with jitter: seconds to wait before each further attempt, without end.

    The step doubles up to `longest_s`; each delay is drawn from the upper half of its step.
    """
    # Unseeded on purpose: processes that failed together must not try again together, and no result depends on it.
    jitter = random.Random()
    # No power beyond 32, because one of thousands would be infinite.
    steps_s = (min(first_s * 2.0 ** min(number, 32), longest_s) for number in count())
    return (step_s * jitter.uniform(0.5, 1.0) for step_s in steps_s)


def pause_s(delay_s: float, trouble: MarlessError) -> float:
    """Seconds to wait after an error: `delay_s`, or the server's `retry_after_s` if that is longer."""
    return max(delay_s, trouble.retry_after_s) if isinstance(trouble, OverloadedError) else delay_s


async def retry(operation: Callable[[], Awaitable[Result]], *, patience_s: float) -> Result:
    """Repeat an idempotent operation while it raises UnavailableError or OverloadedError.

    Raises that error if the next attempt would begin more than `patience_s` seconds after the first.
    """
    give_up, pauses = time.monotonic() + patience_s, None
    while True:
        try:
            return await operation()
        except (UnavailableError, OverloadedError) as trouble:
            pauses = pauses or delays()  # made at the first error, because a seed takes time
            pause = pause_s(next(pauses), trouble)
            if time.monotonic() + pause > give_up:
                raise
        await asyncio.sleep(pause)
