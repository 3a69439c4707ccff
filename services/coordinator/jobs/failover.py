"""Follows jobs that do not run here: unfinished ones whose coordinator is gone, which are continued, and ended ones.

What machines still cost because of a job that has ended is noted until they are released or another job uses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from marless.core.errors import FencedError, MarlessError, NotFoundError
from marless.core.log import structlog
from marless.core.machine import MachineRecord
from marless.rpc.concurrency import delays
from marless.services.coordinator.execution.pools import Pools
from marless.services.coordinator.state.ownership import beat_of
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.runs import Index, Runs
from marless.services.coordinator.state.status import JobStatus

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
            if (status.attached and status.job != self._only) or not await self._claim_job(folder):
                self._following[job] = asyncio.create_task(self._follow(status, folder))

    async def _follow(self, status: JobStatus, folder: RunFolder) -> None:
        try:
            if status.attached and status.job != self._only:
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
        except FencedError:  # another coordinator was quicker, and this one waits for its lock
            return False
        except MarlessError as error:  # tried again at the next scan
            _log.error("job.not_continued", job=folder.path.name, error=str(error))
            return True


MOST_JOBS = 64
"""Jobs that are followed at once; of further ones, it is not noted what their machines cost after their end."""
SILENT = 10
"""Questions that no pool answers, after which a job is not followed any more."""
_SOONEST_S, _LATEST_S = 1.0, 30.0
"""Seconds between the first two questions, and the most between any two."""
Keep = Callable[[str, tuple[MachineRecord, ...]], Awaitable[bool]]


class Aftermath:
    """Follows the machines of jobs that have ended."""

    def __init__(self, pools: Pools, keep: Keep, *, soonest_s: float = _SOONEST_S) -> None:
        """`keep` writes down what the machines of a job did; it returns False if that is not wanted any more."""
        self._pools = pools
        self._keep = keep
        self._soonest_s = soonest_s
        self._followed: dict[str, asyncio.Task[None]] = {}

    def follow(self, job: str) -> None:
        """Follow a job that has ended."""
        if before := self._followed.pop(job, None):
            before.cancel()
        if len(self._followed) < MOST_JOBS:
            task = self._followed[job] = asyncio.create_task(self._follow(job))
            # Unless a job that was resumed has ended again, and is followed by another task now.
            task.add_done_callback(lambda done: self._followed.get(job) is done and self._followed.pop(job))

    async def stop(self) -> None:
        """Follow none any more; calling it twice is safe."""
        tasks = list(self._followed.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, job: str) -> None:
        pauses, silent = delays(first_s=self._soonest_s, longest_s=_LATEST_S), 0
        try:
            while silent < SILENT:
                await asyncio.sleep(next(pauses))
                machines = await self._pools.machines(job)
                silent = 0 if machines else silent + 1
                if machines and not await self._keep(job, machines):
                    return
                if machines and not any(each.held for each in machines):
                    return
        except MarlessError as error:
            _log.warning("job.machines_not_saved", job=job, error=str(error))
