"""asyncio helpers: coroutines run together, functions in threads that are not abandoned on cancellation, retries of
idempotent calls with back-off, and many small things sent in few messages.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar

from marless.core.errors import MarlessError, OverloadedError, UnavailableError, contained

T = TypeVar("T")
U = TypeVar("U")
FIRST_DELAY_S = 0.02
LONGEST_DELAY_S = 1.0
Result = TypeVar("Result")
MOST_BATCHED, MOST_BATCHED_BYTES = 256, 2**20
"""Things in a message, and their bytes, unless one alone has more."""
BATCH_PAUSE_S = 0.02
"""Seconds between two messages, unless a full one waits."""
Thing = TypeVar("Thing")


async def gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order.

    The first error cancels the others and is raised itself, not as an exception group.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        # Not a TaskGroup: before Python 3.13, one that fails leaves its task half cancelled (`cancelling()` stays 1),
        # so that the next timeout or group in the same task takes it for cancelled.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def both(first: Coroutine[Any, Any, T], second: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Run two coroutines concurrently and return both results; errors as in `gather`."""
    results: list[Any] = await gather((first, second))  # Any: two types
    return results[0], results[1]


@asynccontextmanager
async def in_thread(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """Enter and leave a context manager that blocks in threads."""
    value = await asyncio.to_thread(manager.__enter__)
    try:
        yield value
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


async def stoppable(function: Callable[[threading.Event], T]) -> T:
    """Run a function in a thread. If the caller is cancelled, the event passed to the function is set, and the
    cancellation takes effect once the function has returned. A BaseException of the function, such as SystemExit, is
    raised as InternalError, because it would end this process.
    """
    stop = threading.Event()
    work = asyncio.create_task(asyncio.to_thread(contained, partial(function, stop)))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.gather(work, return_exceptions=True)
        raise


async def to_the_end(function: Callable[..., T], *args: object) -> T:
    """Run a function that writes in a thread. If the caller is cancelled, it still waits until the function has
    returned, so that it keeps hold of the resources that the function uses.
    """
    work = asyncio.create_task(asyncio.to_thread(function, *args))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


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


class Batcher(Generic[Thing]):
    """Things that wait to be sent, in order; who adds them sees to it that they are not too many."""

    def __init__(
        self,
        send: Callable[[Sequence[Thing]], Awaitable[None]],
        *,
        size: Callable[[Thing], int],
        pause_s: float = BATCH_PAUSE_S,
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
        if len(self._waiting) >= MOST_BATCHED:
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
            if len(self._waiting) < MOST_BATCHED:
                self._many.clear()
            # The pause counts from when sending began, so that a slow message does not delay the next one still more.
            with suppress(TimeoutError):
                async with asyncio.timeout(began_s + self._pause_s - time.monotonic()):
                    await self._many.wait()

    def _next_batch(self) -> list[Thing]:
        some: list[Thing] = []
        held = 0
        while self._waiting and len(some) < MOST_BATCHED:
            held += self._size(self._waiting[0])
            if some and held > MOST_BATCHED_BYTES:
                break
            some.append(self._waiting.popleft())
        return some
