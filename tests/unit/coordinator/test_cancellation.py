"""What a cancelled job still does is bounded by a grace."""

import asyncio

import pytest

from marless.core.errors import CancelledJobError
from marless.services.coordinator.execution import interruptions
from marless.services.coordinator.execution.interruptions import Cancellation


@pytest.fixture(autouse=True)
def grace(monkeypatch):
    monkeypatch.setattr(interruptions, "GRACE_S", 0.05)


async def stuck(cancellation: Cancellation) -> None:
    async with cancellation.abandoning():
        await asyncio.Event().wait()


async def test_what_waits_when_its_job_is_cancelled_is_abandoned_after_the_grace():
    cancellation = Cancellation()
    task = asyncio.create_task(stuck(cancellation))
    await asyncio.sleep(0)
    cancellation.ask()
    cancellation.ask()
    async with asyncio.timeout(5):
        with pytest.raises(CancelledJobError, match="cancelled by its user"):
            await task
        with pytest.raises(CancelledJobError):  # whatever comes next has no grace of its own
            await stuck(cancellation)


async def test_what_ends_within_the_grace_is_not_disturbed():
    cancellation = Cancellation()
    cancellation.ask()
    async with cancellation.abandoning():
        await asyncio.sleep(0)


async def test_a_time_limit_of_the_step_itself_is_not_taken_for_a_cancellation():
    with pytest.raises(TimeoutError):
        async with Cancellation().abandoning():
            raise TimeoutError
