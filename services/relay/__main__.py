"""`python -m marless.services.relay`: starts the relay of a host, from command-line options."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from marless.rpc.admission import Streams, Transfers
from marless.rpc.client import Peer
from marless.rpc.process import add_peer
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, option_parser, run, server_options
from marless.services.relay.servicer import MOST_WORKERS, RelayedUploads, RelayServicer, Workers

UPLOADS = 256
"""Calls with small trajectories at a time; others wait for their turn, before their bytes are received."""


@dataclass(frozen=True)
class RelayConfig:
    """All options of the relay."""

    server: ServerOptions
    actor_pool: str
    """Address of the pool of its workers."""
    learner_pool: str
    """Address of the pool that their trajectories are for."""
    upstream: Security
    """What it shows the pools; unlike what it serves with, it has TLS also if it listens at a unix socket."""


def parse(argv: Sequence[str] | None = None) -> RelayConfig:
    """Read the options from flags and MARLESS_* environment variables."""
    parser = option_parser("relay", "Passes on what actor workers of a host and their pools tell one another.")
    add_peer(parser, "--actor-pool", "actor_pool")
    add_peer(parser, "--learner-pool", "learner_pool")
    args = parser.parse_args(argv)
    shown = server_options(args)
    server = replace(shown, security=shown.security.towards(shown.listen))
    return RelayConfig(server, args.actor_pool, args.learner_pool, shown.security)


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
