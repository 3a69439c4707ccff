"""A coordinator for one job of this process: its servicer is called directly, without a server."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from marless.core import orphans, process_environment
from marless.core.log import structlog
from marless.jobs.job import prepare
from marless.rpc.process import configure_logging
from marless.services.coordinator.api.monitoring import Readiness
from marless.services.coordinator.api.servicer import CoordinatorServicer
from marless.services.coordinator.in_process.actors import ActorRunner, PlainActors, ProcessActors
from marless.services.coordinator.in_process.pools import InProcessPools
from marless.services.coordinator.jobs.jobs import Jobs, JobsOptions
from marless.services.coordinator.jobs.submission import Preparing


@asynccontextmanager
async def serving(folder: Path, *, workers: int) -> AsyncIterator[CoordinatorServicer]:
    """Serve the job of this run folder until the context ends; it stays RUNNING on the disk if it is not done by then.

    Args:
        folder: Its run folder, which need not exist.
        workers: Processes that play; 0: this one plays, too, and makes the environment to look at its spaces.
    """
    actors: ActorRunner = ProcessActors(workers) if workers else PlainActors()
    process_environment.keep_freed_memory()
    options = JobsOptions(only=folder.name)
    # What an environment starts and leaves behind ends with the job, as it does with a worker; what the program around
    # it has started before does not.
    with _torch() as ready, _log(folder / "logs"), orphans.contained(spare=True):
        pools = InProcessPools(actors, folder / "replay", ready)
        try:
            async with Jobs(folder.parent, pools, options, Preparing(None if workers else prepare)) as jobs:
                yield CoordinatorServicer(jobs, Readiness({}, folder.parent))
        finally:
            await pools.close()


@contextmanager
def _torch() -> Iterator[Callable[[], None]]:
    """Import torch, which takes most of a second, beside the preparation of the job; yields what waits for it.

    Afterwards torch has its threads again, for the program that this job was a part of.
    """
    threads: list[int] = []

    def prepare() -> None:
        import torch

        from marless.learning.nets.kernels import compute_side_by_side

        threads.append(torch.get_num_threads())
        compute_side_by_side()

    preparing = threading.Thread(target=prepare, name="torch", daemon=True)
    preparing.start()
    try:
        yield preparing.join
    finally:
        preparing.join()
        if threads:
            import torch

            torch.set_num_threads(threads[0])


@contextmanager
def _log(folder: Path) -> Iterator[None]:
    """Write what this process logs to a file of the folder, as services do, and not between what it prints."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "in_process.log").open("a", encoding="utf-8") as file:
        configure_logging(file)
        yield
        structlog.reset_defaults()
