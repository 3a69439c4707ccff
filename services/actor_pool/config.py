"""Command-line options of the actor pool."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from marless.fleet.launchers.registry import LOCAL, Choice, add_launcher, limit_of
from marless.rpc.process import (
    add_caches,
    add_env_modules,
    add_option,
    add_peer,
    add_relay,
    add_worker_tls,
    at_least,
    seconds,
)
from marless.rpc.server import ServerOptions, option_parser, server_options


@dataclass(frozen=True)
class ActorPoolConfig:
    """All options of the actor pool."""

    server: ServerOptions
    param_store: str
    """Address of the param_store, handed to workers."""
    workers: int
    """Maximum number of workers; each uses one vCPU."""
    warm: int
    """Workers that are started with the pool."""
    keep_alive_s: float
    """Seconds after which an idle worker is stopped."""
    env_modules: tuple[str, ...] = ()
    """Modules whose environments jobs may use in addition to PettingZoo's own; handed to workers."""
    worker_tls: tuple[str, str] = ("", "")
    """Paths of the workers' certificate chain and its key; "": those of the pool."""
    launcher: Choice = LOCAL
    """What starts the workers."""
    caches: tuple[str, ...] = ()
    """Addresses of caches of the param_store, handed to workers."""
    relay: str = ""
    """Address of a relay on each host, handed to workers; "": none."""


def parse(argv: Sequence[str] | None = None) -> ActorPoolConfig:
    """Read the options from flags and MARLESS_* environment variables."""
    parser = option_parser("actor_pool", "Runs actors: batches of environment copies under given policy versions.")
    add_peer(parser, "--param-store", "param_store")
    add_caches(parser)
    add_relay(parser)
    add_option(
        parser,
        "--actor-workers",
        str(os.cpu_count() or 1),
        "largest number of actor workers that the pool starts",
        at_least(0),
    )
    add_option(
        parser, "--warm-workers", "0", "workers that are started with the pool, before a task needs them", at_least(0)
    )
    add_option(parser, "--keep-alive-s", "600", "seconds after which an idle worker is stopped", seconds)
    add_launcher(parser)
    add_worker_tls(parser)
    add_env_modules(parser)
    args = parser.parse_args(argv)
    server = server_options(args)
    return ActorPoolConfig(
        server=server,
        param_store=args.param_store,
        workers=limit_of(parser, args.launcher, args.actor_workers, server.security),
        warm=args.warm_workers,
        keep_alive_s=args.keep_alive_s,
        env_modules=args.env_modules,
        worker_tls=(args.worker_tls_cert, args.worker_tls_key),
        launcher=args.launcher,
        caches=args.param_store_caches,
        relay=args.relay,
    )
