"""Notes what machines still cost because of a job that has ended, until they are released or another job uses them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from marless.core.errors import MarlessError
from marless.core.log import structlog
from marless.core.machine import MachineRecord
from marless.rpc.retry import delays
from services.coordinator.execution.pools import Pools

MOST_JOBS = 64
"""Jobs that are followed at once; of further ones, it is not noted what their machines cost after their end."""
SILENT = 10
"""Questions that no pool answers, after which a job is not followed any more."""
_SOONEST_S, _LATEST_S = 1.0, 30.0
"""Seconds between the first two questions, and the most between any two."""
_log = structlog.get_logger("coordinator")
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
