"""Waking tasks that wait for a change: at once, or with the changes that follow."""

from __future__ import annotations

import asyncio

from services.coordinator.jobs import notifier
from services.coordinator.jobs.notifier import Notifier

WITHIN_S = 10.0


async def test_a_change_wakes_all_that_wait() -> None:
    told = Notifier()
    waiting = [asyncio.create_task(told.next.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    told.tell()
    await asyncio.wait_for(asyncio.gather(*waiting), WITHIN_S)
    assert not told.next.is_set()


async def test_the_first_change_wakes_at_once_and_those_that_follow_it_together() -> None:
    told = Notifier()
    first = told.next
    told.tell_soon()
    assert first.is_set()
    before = told.next
    for _ in range(3):
        told.tell_soon()
    assert told.next is before and not before.is_set()
    await asyncio.wait_for(before.wait(), WITHIN_S)
    after = told.next
    assert after is not before and not after.is_set()
    await asyncio.sleep(2 * notifier.GATHER_S)
    assert told.next is after, "it woke once more, for changes that were told"


async def test_a_change_that_cannot_wait_takes_the_others_along() -> None:
    told = Notifier()
    told.tell_soon()
    told.tell_soon()
    before = told.next
    assert not before.is_set()
    told.tell()
    assert before.is_set()
    after = told.next
    await asyncio.sleep(2 * notifier.GATHER_S)
    assert told.next is after, "what was gathered has been told"
