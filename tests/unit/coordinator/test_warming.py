"""Hints to the actor pool: sent if wanted, one at a time, and never missed when they are lost."""

import asyncio

import pytest

from marless.core.errors import UnreachableError
from marless.services.coordinator.execution.reservations import Prewarming


class ActorPool:
    """Answers a hint when it is let."""

    def __init__(self) -> None:
        self.hints: list[int] = []
        self.answer = asyncio.Event()
        self.error: Exception | None = None
        self.given_up = False

    async def prewarm(self, job: str, actors: int) -> None:
        self.hints.append(actors)
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.given_up = True
            raise
        if self.error:
            raise self.error


@pytest.fixture
async def pool() -> ActorPool:
    return ActorPool()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_hint_at_a_time_is_sent_and_nobody_waits(pool):
    warming = Prewarming(pool, "j", wanted=True)
    warming.expect(3)
    await settle()
    warming.expect(4)  # the last one is still under way
    await settle()
    assert pool.hints == [3]
    pool.answer.set()
    await settle()
    warming.expect(5)
    await settle()
    assert pool.hints == [3, 5]


async def test_a_lost_hint_is_no_trouble(pool):
    pool.error = UnreachableError("actor_pool: away")
    pool.answer.set()
    warming = Prewarming(pool, "j", wanted=True)
    for actors in (1, 2):
        warming.expect(actors)
        await settle()
        assert warming._hint.exception() is None
    assert pool.hints == [1, 2]


async def test_only_more_than_the_pool_has_heard_of_is_worth_a_hint(pool):
    pool.answer.set()
    warming = Prewarming(pool, "j", wanted=True)
    for actors in (3, 3, 2, 4):
        warming.expect(actors)
        await settle()
    assert pool.hints == [3, 4]


async def test_a_hint_that_was_lost_is_sent_again(pool):
    pool.error = UnreachableError("actor_pool: away")
    pool.answer.set()
    warming = Prewarming(pool, "j", wanted=True)
    for _ in range(2):
        warming.expect(3)
        await settle()
    assert pool.hints == [3, 3]


async def test_a_job_that_wants_none_sends_none(pool):
    Prewarming(pool, "j", wanted=False).expect(3)
    await settle()
    assert pool.hints == []


async def test_a_hint_ends_with_its_job(pool):
    warming = Prewarming(pool, "j", wanted=True)
    warming.stop()
    warming.expect(1)
    await settle()
    warming.stop()
    warming.stop()
    await settle()
    assert pool.given_up
