"""`python -m marless.services.param_store`: starts the parameter store process, from command-line options."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from prometheus_client.metrics_core import Metric

from marless.core.limits import MAX_PUBLISH_BYTES
from marless.rpc.addresses import can_be_dialled
from marless.rpc.admission import Streams, Transfers
from marless.rpc.metrics import counter, gauge
from marless.rpc.process import add_option, at_least
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, option_parser, run, server_options
from marless.services.param_store import connection, redis_server
from marless.services.param_store.blobs import SHARED_BYTES, BlobUploads
from marless.services.param_store.cache import cache
from marless.services.param_store.connection import connected, holds_password
from marless.services.param_store.redis_server import Provided, RedisOptions
from marless.services.param_store.servicer import ParamStoreServicer
from marless.services.param_store.store import WATCHES, VersionStore

_OF_REDIS = ("redis_url", "redis_password_file", "data_dir")
READS, PUBLISHES = 32, 64
"""Transfers at a time; others wait for their turn. One process is no faster with more, and each holds up to 10 MB."""


@dataclass(frozen=True)
class ParamStoreConfig:
    """All options of the parameter store."""

    server: ServerOptions
    redis: RedisOptions
    keep: int
    """Number of newest versions of each policy that are kept, in addition to pinned ones."""
    intake_bytes: int
    """Total bytes that publishes in progress may hold in memory."""
    upstream: str = ""
    """Address of the param_store that this one is a cache of; "": it is a store, with a Redis."""
    upstream_security: Security | None = None
    """What a cache shows its upstream, if it is not what it serves with."""
    cache_bytes: int = SHARED_BYTES
    """Total bytes of versions that a cache keeps."""


def parse(argv: Sequence[str] | None = None) -> ParamStoreConfig:
    """Read the options from flags and MARLESS_* environment variables."""
    parser = option_parser("param_store", "Keeps versioned policy states in Redis.")
    add_option(
        parser, "--redis-url", "", "Redis to use (6.2 or newer); without it, the service starts a Redis of its own"
    )
    add_option(parser, "--redis-password-file", "", "file that holds the password for --redis-url")
    parser.add_argument(
        "--redis-insecure",
        action="store_true",
        default=os.environ.get("MARLESS_REDIS_INSECURE", "") not in ("", "0"),
        help="allow a Redis on another machine without TLS or a password [$MARLESS_REDIS_INSECURE]",
    )
    add_option(parser, "--data-dir", "", "data directory of a Redis that the service starts; default: a temporary one")
    add_option(
        parser, "--redis-maxmemory", "1gb", "memory limit of a Redis that the service starts, in Redis's notation"
    )
    add_option(
        parser, "--keep", "3", "number of newest versions of each policy that are kept", at_least(2)
    )  # a round may be repeated
    add_option(
        parser, "--intake-bytes", str(MAX_PUBLISH_BYTES), "largest total size of publishes in progress", at_least(1)
    )
    what = "be a read-only cache of the param_store at this address, for actors near by; without a Redis"
    add_option(parser, "--upstream", "", what)
    add_option(parser, "--cache-bytes", str(SHARED_BYTES), "bytes of versions that a cache keeps", at_least(1))
    args = parser.parse_args(argv)
    if args.upstream:
        _check_upstream(parser, args)
    if args.redis_url != os.environ.get("MARLESS_REDIS_URL", "") and holds_password(args.redis_url):
        parser.error(
            "--redis-url: every user of this machine can read a command line; give a URL with a password by "
            "$MARLESS_REDIS_URL, or the password by --redis-password-file"
        )
    redis = RedisOptions(
        args.redis_url,
        args.data_dir,
        args.redis_maxmemory,
        password_file=args.redis_password_file,
        insecure=args.redis_insecure,
    )
    server = shown = server_options(args)
    if args.upstream:  # to its upstream it needs TLS
        server = replace(shown, security=shown.security.towards(shown.listen))
    of_cache = (args.upstream, shown.security, args.cache_bytes)
    return ParamStoreConfig(server, redis, args.keep, args.intake_bytes, *of_cache)


def _check_upstream(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with a message for an upstream that cannot be dialled, or is this process, and for options of a Redis."""
    if not can_be_dialled(args.upstream):
        parser.error(f"--upstream {args.upstream}: give the address to dial, such as 10.0.0.1:7070 or unix:PATH")
    if args.upstream in (args.listen, args.advertise):
        parser.error(
            f"--upstream {args.upstream}: this is the address of the cache itself; give that of its param_store"
        )
    given = [f"--{name.replace('_', '-')}" for name in _OF_REDIS if getattr(args, name)]
    if given:
        parser.error(f"--upstream: a cache has no Redis; leave out {', '.join(given)}")


def figures(provided: Provided, uploads: BlobUploads) -> list[Metric]:
    """All metrics: restarts of Redis, and bytes of publishes in progress."""
    return [
        counter("redis_restarts", "How often a Redis of our own was started again.", provided.restarts()),
        gauge("publish_bytes", "Bytes that publishes in progress hold.", uploads.budget.held_bytes),
    ]


@asynccontextmanager
async def build(config: ParamStoreConfig, _address: str) -> AsyncIterator[ServedService]:
    """Build the service: a store with a Redis, or a cache of another store."""
    if config.upstream:
        security = config.upstream_security or config.server.security
        async with cache(config.upstream, security, config.cache_bytes) as of_cache:
            limits = {"Get": Transfers(READS)}
            yield ServedService(of_cache.register, name="ParamStoreService", limits=limits, figures=of_cache.figures)
        return
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the service with these command-line arguments (by default, those of this process) to its end."""
    options = parse(arguments)
    sys.exit(run("param_store", options.server, partial(build, options)))


if __name__ == "__main__":
    main()
