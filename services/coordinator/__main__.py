"""`python -m marless.services.coordinator`: starts the coordinator process."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from marless.core import orphans
from marless.core.process_environment import allow_env_modules
from marless.rpc.admission import Streams
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.server import ServedService, run
from marless.services.coordinator.api.monitoring import Readiness, figures
from marless.services.coordinator.api.servicer import CoordinatorServicer
from marless.services.coordinator.config import CoordinatorConfig, parse
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.jobs.jobs import Jobs
from marless.services.coordinator.state.runs import BucketRuns, Runs

WATCHERS = 512
"""Clients that follow jobs, and as many that follow logs."""


@asynccontextmanager
async def build(config: CoordinatorConfig, _address: str) -> AsyncIterator[ServedService]:
    """Connect to the other services, which may still be starting."""
    async with AsyncExitStack() as stack:
        peers = {name: Peer(address, config.server.security, name) for name, address in config.peers.items()}
        for peer in peers.values():
            stack.push_async_callback(peer.close)
        pools = ServicePools(peers["actor_pool"], peers["learner_pool"], ParamStore(peers["param_store"]))
        jobs = await stack.enter_async_context(Jobs(_runs(config), pools, config.jobs))
        readiness = await stack.enter_async_context(Readiness(peers, jobs.runs))
        servicer = CoordinatorServicer(jobs, readiness)
        yield ServedService(
            servicer.register,
            ready=readiness.ready,
            drain=jobs.stop,
            name="CoordinatorService",
            limits={"WatchJob": Streams(lambda: WATCHERS), "StreamLogs": Streams(lambda: WATCHERS)},
            figures=partial(figures, jobs),
        )


def _runs(config: CoordinatorConfig) -> Runs:
    if config.bucket is None:
        return Runs(config.runs)
    from marless.storage.bucket.objects import S3Objects

    return BucketRuns(config.runs, S3Objects(config.bucket.bucket), config.bucket, config.jobs.lease_s)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the service with these command-line arguments (by default, those of this process) to its end."""
    options = parse(arguments)
    allow_env_modules(options.env_modules)
    orphans.end_of_dead_pools()
    with orphans.contained():  # preparing a job makes its environment once, to read its spaces
        sys.exit(run("coordinator", options.server, partial(build, options)))


if __name__ == "__main__":
    main()
