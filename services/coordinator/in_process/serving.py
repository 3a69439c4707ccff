"""A coordinator for one job of this process: its servicer is called directly, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from marless.jobs.job import prepare
from services.coordinator.api.readiness import Readiness
from services.coordinator.api.servicer import CoordinatorServicer
from services.coordinator.in_process.actors import Actors, PlainActors
from services.coordinator.in_process.pools import InProcessPools
from services.coordinator.jobs.jobs import Jobs, JobsOptions
from services.coordinator.jobs.preparation import Preparing


@asynccontextmanager
async def serving(folder: Path, *, workers: int) -> AsyncIterator[CoordinatorServicer]:
    """Serve the job of this run folder until the context ends; it stays RUNNING on the disk if it is not done by then.

    Args:
        folder: Its run folder, which need not exist.
        workers: Processes that play; 0: this one plays, too.
    """
    actors: Actors = PlainActors()
    pools = InProcessPools(actors, folder / "store" / "replay")
    try:
        options = JobsOptions(only=folder.name)
        async with Jobs(folder.parent, pools, options, Preparing(prepare)) as jobs:
            yield CoordinatorServicer(jobs, Readiness({}, folder.parent))
    finally:
        await pools.close()
