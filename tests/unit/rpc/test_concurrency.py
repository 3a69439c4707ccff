"""Coroutines that run side by side: results in order, one error, nothing left running, and a task that stays usable."""

import asyncio

import pytest

from marless.rpc.concurrency import both, gather


async def answer(number: int, after: asyncio.Event | None = None) -> int:
    if after:
        await after.wait()
    return number


async def fail(after: asyncio.Event | None = None) -> int:
    if after:
        await after.wait()
    raise ValueError("it went wrong")


async def test_results_are_in_the_order_of_the_coroutines():
    late = asyncio.Event()
    asyncio.get_running_loop().call_soon(late.set)
    assert await gather([answer(1, late), answer(2), answer(3)]) == [1, 2, 3]
    assert await both(answer(1, late), answer(2)) == (1, 2)
    assert await gather([]) == []


@pytest.mark.parametrize("late", [False, True])
async def test_an_error_stops_the_others_and_leaves_the_task_as_it_was(late):
    """A TaskGroup leaves it half cancelled before Python 3.13, and a timeout in it then raises CancelledError."""
    stopped = asyncio.Event()
    moment = asyncio.Event() if late else None

    async def wait_for_ever() -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            stopped.set()

    if moment:
        asyncio.get_running_loop().call_later(0.01, moment.set)
    with pytest.raises(ValueError, match="it went wrong"):
        await both(wait_for_ever(), fail(moment))
    assert stopped.is_set() or not late  # one that has not begun has nothing to stop
    task = asyncio.current_task()
    assert task
    assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.get_running_loop().create_future()


async def test_a_cancelled_caller_waits_until_all_have_stopped():
    ended = []

    async def slow_to_stop(number: int) -> int:
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            ended.append(number)

    caller = asyncio.create_task(gather([slow_to_stop(1), slow_to_stop(2)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == [1, 2]
