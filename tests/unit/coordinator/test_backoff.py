"""How long a job waits: as long as it was told, and no longer than its user."""

import asyncio
import time
from itertools import count
from types import SimpleNamespace

import pytest

from marless.core.errors import CancelledJobError, OverloadedError, TooLargeError, UnreachableError
from marless.services.coordinator.execution import interruptions
from marless.services.coordinator.execution.interruptions import PASSING, Backoff, doing

TROUBLE = UnreachableError("store: gone")


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """Time as this test says, and no waiting."""
    clock = SimpleNamespace(now_s=1000.0, monotonic=lambda: clock.now_s)
    monkeypatch.setattr(interruptions, "time", clock)
    monkeypatch.setattr(interruptions, "delays", lambda: (0.0 for _ in count()))
    return clock


async def borne(waits: Backoff, clock: SimpleNamespace, *after_s: float) -> int:
    """How many troubles are borne that come so long after one another."""
    for number, pause_s in enumerate(after_s):
        clock.now_s += pause_s
        try:
            await waits.wait(TROUBLE)
        except UnreachableError:
            return number
    return len(after_s)


async def test_only_trouble_for_that_long_is_too_long(clock):
    assert await borne(Backoff(10, asyncio.Event()), clock, 0, 4, 4, 1.9, 0.2, 1) == 4


async def test_something_achieved_is_a_new_beginning(clock):
    waits = Backoff(10, asyncio.Event())
    assert await borne(waits, clock, 0, 4, 4) == 3
    waits.reset()
    assert not waits.waiting
    assert await borne(waits, clock, 4, 4, 4) == 3


async def test_a_long_calm_is_a_new_beginning(clock):
    assert await borne(Backoff(10, asyncio.Event()), clock, 0, 9, 11, 9) == 4


async def test_whoever_cancels_does_not_wait():
    cancelled = asyncio.Event()
    waits = Backoff(3600, cancelled)
    waits._since_s = waits._last_s = time.monotonic()
    waits._delays = iter([60.0])
    bearing = asyncio.create_task(waits.wait(TROUBLE))
    await asyncio.sleep(0)
    cancelled.set()
    with pytest.raises(CancelledJobError):
        await asyncio.wait_for(bearing, 5)


async def test_who_has_no_room_says_how_long_to_wait(clock, monkeypatch):
    waited_s = []

    def timeout(delay_s: float):
        waited_s.append(delay_s)
        return asyncio.Timeout(asyncio.get_running_loop().time())

    monkeypatch.setattr(interruptions, "asyncio", SimpleNamespace(timeout=timeout))
    waits = Backoff(10, asyncio.Event())
    await waits.wait(OverloadedError("no room in the learner pool: it is full", retry_after_s=3.0))
    await waits.wait(TROUBLE)
    assert waited_s == [3.0, 0.0]


def test_a_job_says_what_it_waits_for():
    full = OverloadedError("no room in the learner pool: 7 bytes are in use")
    assert doing(full) == "waits for room in the learner pool: 7 bytes are in use"
    assert doing(UnreachableError("learner_pool: gone")) == "waits for the learner_pool: gone"
    assert doing(TROUBLE) == "tries again: store: gone"


def test_what_can_never_fit_is_no_trouble_that_passes():
    assert issubclass(OverloadedError, PASSING)
    assert not issubclass(TooLargeError, PASSING)
