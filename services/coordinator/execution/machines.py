"""The machines of one job: what has changed since the last record, and machines.json at the job's end and after it."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import fields, replace
from typing import Any

from marless.core.errors import MarlessError
from marless.core.log import structlog
from marless.core.machine import FACTS, Kept, MachineRecord
from marless.services.coordinator.execution.pools import Pools
from marless.services.coordinator.state.run_folder import RunFolder

LOOK_S = 1.0
"""Seconds between two looks, at least."""
_log = structlog.get_logger("coordinator")


class PoolMachines:
    """Asks the pools what their machines did for a job that runs."""

    def __init__(self, job_id: str, pools: Pools) -> None:
        self._id = job_id
        self._pools = pools
        self._told: dict[tuple[str, str, float], MachineRecord] = {}
        """What was recorded last."""
        self._looked_s = -math.inf

    async def look(self) -> tuple[MachineRecord, ...]:
        """What the pools' machines did for the job so far; nothing if the last look was less than LOOK_S ago, because
        rounds may follow one another in milliseconds.
        """
        if time.monotonic() - self._looked_s < LOOK_S:
            return ()
        self._looked_s = time.monotonic()
        return await self._pools.machines(self._id)

    def changes(self, found: tuple[MachineRecord, ...]) -> tuple[MachineRecord, ...]:
        """The machines among those of a look that did something for the job since the last call, in all pools that
        have them; facts that the last call returned are left out.
        """
        changed = {each.id for each in found if self._has_changed(each)}
        rows = [each for each in found if each.id in changed]
        short = tuple(_without_facts(each, self._told.get(each.key)) for each in rows)
        self._told |= {each.key: each for each in rows}
        return short

    async def at_the_end(self, folder: RunFolder) -> None:
        """Write machines.json of a job that ends; a failure is logged, and the job ends all the same."""
        try:
            found = await self._pools.machines(self._id)
            await asyncio.to_thread(folder.write_kept, Kept(end=found, now=found, seen_s=time.time()))
        except MarlessError as error:
            _log.warning("job.machines_not_saved", job=self._id, error=str(error))

    def _has_changed(self, found: MachineRecord) -> bool:
        # The time for which a machine is there grows by itself, and is no reason to record it again.
        before = self._told.get(found.key)
        return before is None or replace(found, present_s=before.present_s) != before


def _without_facts(found: MachineRecord, before: MachineRecord | None) -> MachineRecord:
    known = [name for name in FACTS if before and getattr(before, name) == getattr(found, name)]
    defaults: dict[str, Any] = {each.name: each.default for each in fields(MachineRecord)}  # Any: of several kinds
    return replace(found, **{name: defaults[name] for name in known})
