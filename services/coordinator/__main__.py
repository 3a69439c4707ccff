"""`python -m services.coordinator`: the coordinator as a process."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.server import Service, main
from marless.rpc.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from services.coordinator.config import Config, parse
from services.coordinator.jobs import Jobs
from services.coordinator.pools import Pools
from services.coordinator.servicer import CoordinatorServicer


@asynccontextmanager
async def build(config: Config, address: str) -> AsyncIterator[Service]:
    """Connect to the other services, which may still be starting."""
    peers = [Peer(to, config.server.security) for to in (config.actor_pool, config.learner_pool, config.param_store)]
    actor_pool, learner_pool, store = peers
    async with Jobs(config.runs, Pools(actor_pool, learner_pool, ParamStore(store))) as jobs:
        servicer = CoordinatorServicer(jobs)
        yield Service(partial(add_CoordinatorServiceServicer_to_server, servicer), drain=jobs.stop)
    for peer in peers:
        await peer.close()


if __name__ == "__main__":
    options = parse()
    sys.exit(main("coordinator", options.server, partial(build, options)))
