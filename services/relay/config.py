"""Command-line options of the relay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from marless.rpc.process import add_peer
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, option_parser, server_options


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
