"""Asks the pools ahead for what a round needs: room for its trajectories, and workers for its actors.

Room is reserved in the learner pool, unless the last update has reserved it already. Workers are pre-warmed during an
update: a pool keeps its workers while a job uses them, so a request is sent only for a number above all earlier ones.
It may get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from marless.core.errors import CancelledJobError, MarlessError
from marless.jobs.job import PreparedJob
from marless.services.coordinator.execution.interruptions import CANCELLED, SHOWN_AFTER_S
from marless.services.coordinator.execution.pools import Pools


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
        self.workers = Prewarming(pools, job_id, wanted=job.spec.functions.prewarm)
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


class Prewarming:
    """Sends the pre-warming requests of one job, in the background."""

    def __init__(self, pools: Pools, job_id: str, *, wanted: bool) -> None:
        self._pools = pools
        self._id = job_id
        self._wanted = wanted
        self._hint: asyncio.Task[None] | None = None
        self._told = 0
        """The highest number of actors that the pool has acknowledged."""

    def expect(self, actors: int) -> None:
        """Ask for workers for `actors` actors, unless pre-warming is off or as many were asked for before."""
        if self._wanted and actors > self._told and (self._hint is None or self._hint.done()):
            self._hint = asyncio.create_task(self._send(actors))

    def stop(self) -> None:
        """Cancel a request that is under way; calling it twice is safe."""
        if self._hint:
            self._hint.cancel()

    async def _send(self, actors: int) -> None:
        try:
            await self._pools.prewarm(self._id, actors)
            self._told = max(self._told, actors)
        except MarlessError:
            return  # the next rollout starts the workers that it needs, or raises the error
