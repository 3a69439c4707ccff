"""Room that jobs share: whole requests, in turn, and small ones past large ones once."""

import asyncio

import pytest

from marless.core.errors import OverloadedError
from marless.rpc.admission import ByteBudget


class Asking:
    """Requests of one room, by name."""

    def __init__(self, limit: int, **options: int) -> None:
        self.room = ByteBudget("test", "--limit", limit, **options)
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, job: str, size: int, wait_s: float | None = None) -> asyncio.Task[None]:
        self.tasks[job] = asyncio.create_task(self.room.take(job, size, wait_s=wait_s))
        await self.settle()
        return self.tasks[job]

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def give(self, job: str, size: int) -> None:
        self.room.release(job, size)
        await self.settle()

    def admitted(self) -> set[str]:
        return {job for job, task in self.tasks.items() if task.done() and not task.cancelled()}


async def test_a_job_alone_may_use_all_and_the_next_waits_for_it():
    asking = Asking(10)
    await asking.ask("a", 10)
    await asking.ask("b", 1)
    assert (asking.admitted(), asking.room.waiting, asking.room.held_bytes) == ({"a"}, 1, 10)
    await asking.give("a", 10)
    assert (asking.admitted(), asking.room.waiting, asking.room.held_bytes) == ({"a", "b"}, 0, 1)


async def test_a_job_within_its_share_passes_one_above_but_once_only():
    asking = Asking(10)
    await asking.ask("a", 4)
    await asking.ask("big", 8)
    await asking.ask("small", 3)
    assert asking.admitted() == {"a", "small"}  # 8 of 10 are more than a third
    await asking.give("small", 3)
    await asking.ask("small", 3)
    assert asking.admitted() == {"a"}  # it has passed once, and is waiting now
    await asking.give("a", 4)
    assert asking.admitted() == {"a", "big"}
    await asking.give("big", 8)
    assert asking.admitted() == {"a", "big", "small"}


async def test_those_within_their_share_keep_their_order():
    asking = Asking(10)
    await asking.ask("a", 10)
    for job in "bcd":
        await asking.ask(job, 2)
    await asking.give("a", 8)
    await asking.give("a", 2)
    assert asking.admitted() == {"a", "b", "c", "d"}
    assert asking.room.held_bytes == 6


async def test_nobody_passes_who_would_exceed_its_own_share_or_who_passes_one_within_its_own():
    asking = Asking(10)
    await asking.ask("a", 4)
    await asking.ask("big", 8)
    await asking.ask("middle", 4)  # there is room, but a third of 10 is less
    assert asking.admitted() == {"a"}
    asking = Asking(10)
    await asking.ask("a", 9)
    await asking.ask("b", 2)
    await asking.ask("c", 1)  # there is room
    assert asking.admitted() == {"a"}
    await asking.give("a", 9)
    assert asking.admitted() == {"a", "b", "c"}


async def test_waiting_is_bounded_in_number_and_time_and_leaves_nothing():
    asking = Asking(10, waiting=1)
    await asking.ask("a", 10)
    late = await asking.ask("b", 2, wait_s=0.01)
    with pytest.raises(
        OverloadedError, match=r"^no room in the test: 10 bytes are in use, 2 more exceed 10 \(--limit\)"
    ):
        await asking.room.take("c", 2)
    with pytest.raises(OverloadedError, match="others hold it for long"):
        await late
    assert asking.room.waiting == 0
    waiting = await asking.ask("d", 2)
    waiting.cancel()
    await asking.settle()
    await asking.give("a", 10)
    assert (asking.room.held_bytes, asking.room.waiting) == (0, 0)


async def test_who_is_given_up_in_the_moment_of_admission_holds_nothing():
    asking = Asking(10)
    await asking.ask("a", 10)
    waiting = await asking.ask("b", 2)
    asking.room.release("a", 10)
    waiting.cancel()
    await asking.settle()
    assert (waiting.cancelled(), asking.room.held_bytes) == (True, 0)


async def test_who_stops_waiting_lets_those_behind_it_go():
    asking = Asking(10)
    await asking.ask("a", 6)
    large = await asking.ask("b", 8)
    await asking.ask("b2", 4)
    await asking.ask("a2", 4)
    large.cancel()
    await asking.settle()
    assert "b2" in asking.admitted()


async def test_what_is_set_aside_is_not_to_be_had():
    asking = Asking(10)
    asking.room.set_aside(8)
    await asking.ask("a", 4)
    assert asking.admitted() == set()
    asking.room.set_aside(6)
    await asking.settle()
    assert (asking.admitted(), asking.room.free_bytes) == ({"a"}, 0)
