"""asyncio helpers: gather coroutines, and run functions in threads without abandoning them on cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from marless.core.errors import contained

T = TypeVar("T")
U = TypeVar("U")


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
