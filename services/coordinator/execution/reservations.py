"""Reserves room in the learner pool for a round's trajectories, unless the last update has reserved it already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from marless.core.errors import CancelledJobError
from marless.jobs.job import PreparedJob
from services.coordinator.execution.cancellation import CANCELLED, SHOWN_AFTER_S
from services.coordinator.execution.pools import Pools


class JobReservations:
    """The reservations of one job; `show` is called with the job's new `reason` while it waits for room."""

    def __init__(
        self, *, job_id: str, job: PreparedJob, pools: Pools, cancelled: asyncio.Event, show: Callable[[str], None]
    ) -> None:
        self._id = job_id
        self._job = job
        self._pools = pools
        self._cancelled = cancelled
        self._show = show
        self._kept = (0, 0)
        """A round, and the number of its actors for which room is reserved already."""

    def keep(self, round_: int, actors: int) -> None:
        """The learner pool has reserved room for so many actors of this round."""
        self._kept = (round_, actors)

    def release_all(self) -> None:
        """Nothing is known to be reserved, as after a failure."""
        self._kept = (0, 0)

    async def make_sure(self, round_: int, actors: int, epoch: int) -> bool:
        """Return once room for `actors` actors is reserved: True if the job had to wait longer than SHOWN_AFTER_S.

        Raises the errors of `Pools.reserve`, and CancelledJobError if the job is cancelled while it waits.
        """
        kept_round, kept = self._kept
        if round_ == kept_round and actors <= kept:
            return False
        asking = asyncio.create_task(self._pools.reserve(self._id, self._job, round_, actors, epoch=epoch))
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            done, _ = await asyncio.wait(
                [asking, cancelled], timeout=SHOWN_AFTER_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                self._show("waits for room in the learner pool")
                await asyncio.wait([asking, cancelled], return_when=asyncio.FIRST_COMPLETED)
                self._show("training")
            if not asking.done():
                raise CancelledJobError(CANCELLED)
            await asking
            return not done
        finally:
            # This ends the call, too: the learner pool must not reserve room for a job that has stopped waiting.
            asking.cancel()
            cancelled.cancel()
