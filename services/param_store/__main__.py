"""`python -m services.param_store`: starts the parameter store process."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from marless.rpc.admission import Streams, Transfers
from marless.rpc.server import ServedService, run
from services.param_store import connection, redis_server
from services.param_store.cache import cache
from services.param_store.config import ParamStoreConfig, parse
from services.param_store.connection import connected
from services.param_store.metrics import figures
from services.param_store.servicer import ParamStoreServicer
from services.param_store.store import WATCHES, VersionStore
from services.param_store.uploads import BlobUploads

READS, PUBLISHES = 32, 64
"""Transfers at a time; others wait for their turn. One process is no faster with more, and each holds up to 10 MB."""


@asynccontextmanager
async def build(config: ParamStoreConfig, _address: str) -> AsyncIterator[ServedService]:
    """Build the service: a store with a Redis, or a cache of another store."""
    async with _cache(config) if config.upstream else _store(config) as service:
        yield service


@asynccontextmanager
async def _store(config: ParamStoreConfig) -> AsyncIterator[ServedService]:
    """Find or start Redis, and connect to it."""
    async with redis_server.provided(config.redis) as provided, connected(provided) as redis:
        store = VersionStore(redis, provided.trouble, keep=config.keep)
        risk = await connection.risk(redis, provided)
        uploads = BlobUploads(config.intake_bytes)
        servicer = ParamStoreServicer(store, uploads, risk)
        yield ServedService(
            servicer.register,
            store.ready,
            store.drain,
            "ParamStoreService",
            limits={
                "Get": Transfers(READS),
                "Publish": Transfers(PUBLISHES),
                "Watch": Streams(lambda: WATCHES),
            },
            figures=partial(figures, provided, uploads),
        )


@asynccontextmanager
async def _cache(config: ParamStoreConfig) -> AsyncIterator[ServedService]:
    security = config.upstream_security or config.server.security
    async with cache(config.upstream, security, config.cache_bytes) as servicer:
        yield ServedService(
            servicer.register,
            name="ParamStoreService",
            limits={"Get": Transfers(READS)},
            figures=servicer.figures,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the service with these command-line arguments (by default, those of this process) to its end."""
    options = parse(arguments)
    sys.exit(run("param_store", options.server, partial(build, options)))


if __name__ == "__main__":
    main()
