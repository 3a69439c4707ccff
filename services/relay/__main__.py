"""`python -m services.relay`: starts the relay of a host."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from marless.rpc.admission import Streams, Transfers
from marless.rpc.client import Peer
from marless.rpc.roles import Role
from marless.rpc.server import ServedService, run
from services.relay.config import RelayConfig, parse
from services.relay.servicer import RelayedUploads, RelayServicer
from services.relay.workers import MOST_WORKERS, Workers

UPLOADS = 256
"""Calls with small trajectories at a time; others wait for their turn, before their bytes are received."""


@asynccontextmanager
async def build(config: RelayConfig, _address: str) -> AsyncIterator[ServedService]:
    """Build the relay. It calls the pools as an actor does, so that it can do no more than they."""
    security = replace(config.upstream, token=config.upstream.showing(Role.ACTOR))
    actor_pool = Peer(config.actor_pool, security, "actor_pool")
    learner_pool = Peer(config.learner_pool, security, "learner_pool")
    workers, uploads = Workers(actor_pool), RelayedUploads(learner_pool)
    servicer = RelayServicer(workers, uploads)
    uploads.start()
    try:
        yield ServedService(
            servicer.register,
            ready=workers.ready,
            drain=workers.stop,
            limits={"Work": Streams(lambda: MOST_WORKERS), "UploadMany": Transfers(UPLOADS)},
            figures=servicer.figures,
        )
    finally:
        await uploads.stop()
        await workers.stop()
        await learner_pool.close()
        await actor_pool.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the relay with these command-line arguments (by default, those of this process) to its end."""
    options = parse(arguments)
    sys.exit(run("relay", options.server, partial(build, options)))


if __name__ == "__main__":
    main()
