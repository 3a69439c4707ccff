"""Failover: finds unfinished jobs in the runs directory whose coordinator is gone, and continues them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from marless.core.errors import MarlessError, NotFoundError
from marless.core.log import structlog
from services.coordinator.state.job_index import Index
from services.coordinator.state.ownership import beat_of
from services.coordinator.state.run_folder import RunFolder
from services.coordinator.state.runs import Runs
from services.coordinator.state.status import JobStatus

ATTACHED_LEASES = 3
"""How many leases an attached job whose owner has stopped beating is left to the process that submitted it."""
_log = structlog.get_logger("coordinator")


class Failover:
    """Scans the runs directory twice a lease, and waits for the lock of each job that another coordinator runs.

    Args:
        lease_s: A coordinator that does not touch its lock file for so long loses the job.
        only: The only job to take over, even if it is attached; "": all of them.
        is_ours: True for the id of a job that this coordinator runs already.
        continue_job: Continues the job of a run folder; returns False if another coordinator holds its lock.
    """

    def __init__(
        self,
        index: Index,
        runs: Runs,
        *,
        lease_s: float,
        only: str,
        is_ours: Callable[[str], bool],
        continue_job: Callable[[RunFolder], Awaitable[bool]],
    ) -> None:
        self._index = index
        self._runs = runs
        self._lease_s = lease_s
        self._only = only
        self._is_ours = is_ours
        self._continue_job = continue_job
        self._following: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the scans; the first is at once."""
        self._looking = asyncio.create_task(self._keep_looking())

    async def stop(self) -> None:
        """Stop scanning and waiting for locks; calling it twice is safe."""
        tasks = [*self._following.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_looking(self) -> None:
        await asyncio.to_thread(self._index.clear_away)
        trouble = ""
        while True:
            try:
                await self._look()
                trouble = ""
            except MarlessError as error:
                # Trouble that lasts is logged when it begins, not at each scan.
                if trouble != (trouble := str(error)):
                    _log.error("coordinator.runs_unreadable", error=trouble)
            await asyncio.sleep(self._lease_s / 2)

    async def _look(self) -> None:
        """Continue jobs whose lock is free, running ones before pending ones; wait for the locks of the others."""
        found = await self._index.look(self._is_ours)
        for status in sorted(found, key=lambda status: status.state == "PENDING"):
            job = status.job
            if job in self._following or self._only not in ("", job):
                continue
            folder = self._runs.folder(job)
            if self._leaves_alone(status) or not await self._claim_job(folder):
                self._following[job] = asyncio.create_task(self._follow(status, folder))

    def _leaves_alone(self, status: JobStatus) -> bool:
        return status.attached and status.job != self._only

    async def _follow(self, status: JobStatus, folder: RunFolder) -> None:
        try:
            if self._leaves_alone(status):
                before = beat_of(folder.path)
                await asyncio.sleep(ATTACHED_LEASES * self._lease_s)
                # Its owner is alive after all, and the next scan follows the job anew.
                if beat_of(folder.path) != before:
                    return
            await folder.inherit(self._lease_s)
            await self._claim_job(folder)
        except MarlessError as error:
            _log.warning("job.not_taken_over", job=status.job, error=str(error))
        finally:
            del self._following[status.job]

    async def _claim_job(self, folder: RunFolder) -> bool:
        try:
            return await self._continue_job(folder)
        except NotFoundError:  # deleted meanwhile
            return True
        except MarlessError as error:  # tried again at the next scan
            _log.error("job.not_continued", job=folder.path.name, error=str(error))
            return True
