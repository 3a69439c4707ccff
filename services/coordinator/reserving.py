"""Room in the learner pool for a round: asked for before its actors run, unless the last update has kept it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from marless.errors import CancelledJobError
from marless.job import Job
from services.coordinator.pools import Pools

SHOWN_AFTER_S = 1.0


class Reserving:
    """One job's reservations. `show` is told what the job does while it waits for its turn."""

    def __init__(
        self, *, job_id: str, job: Job, pools: Pools, cancelled: asyncio.Event, show: Callable[[str], None]
    ) -> None:
        self._id = job_id
        self._job = job
        self._pools = pools
        self._cancelled = cancelled
        self._show = show
        self.kept = 0
        """So many actors of the next round have room already."""

    async def make_sure(self, round_: int, actors: int, epoch: int) -> bool:
        """Return when there is room for so many actors: True if the job had to wait for it.

        Raises what `Pools.reserve` does, and CancelledJobError if the job is cancelled meanwhile.
        """
        if actors <= self.kept:
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
                raise CancelledJobError("cancelled by its user")
            await asking
            return not done
        finally:
            asking.cancel()
            cancelled.cancel()
