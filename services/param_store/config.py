"""Command-line options of the parameter store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from marless.rpc.process import add_option, at_least
from marless.rpc.server import ServerOptions, option_parser, server_options
from services.param_store.redis_server import RedisOptions
from services.param_store.redis_url import holds_password


@dataclass(frozen=True)
class Config:
    """All options of the parameter store."""

    server: ServerOptions
    redis: RedisOptions
    keep: int
    """Number of newest versions kept of each policy, in addition to pinned ones."""
    intake_bytes: int
    """Total bytes that publishes in progress may hold in memory."""


def parse(argv: Sequence[str] | None = None) -> Config:
    """Read the options from flags and MARLESS_* environment variables."""
    parser = option_parser("param_store", "Keeps versioned policy states in Redis.")
    add_option(parser, "--redis-url", "", "Redis to use (6.2 or newer); without it, one is found and started")
    add_option(parser, "--redis-password-file", "", "file that holds the password for --redis-url")
    parser.add_argument(
        "--redis-insecure",
        action="store_true",
        default=os.environ.get("MARLESS_REDIS_INSECURE", "") not in ("", "0"),
        help="let --redis-url lead beyond this machine without TLS or a password [$MARLESS_REDIS_INSECURE]",
    )
    add_option(parser, "--data-dir", "", "where a Redis that is started keeps its data; without it, they are temporary")
    add_option(parser, "--redis-maxmemory", "1gb", "memory bound of a Redis that is started, in Redis's notation")
    add_option(parser, "--keep", "3", "newest versions kept of each policy", at_least(2))  # a round may be repeated
    add_option(parser, "--intake-bytes", str(2**29), "bytes that publishes in progress may hold together", at_least(1))
    args = parser.parse_args(argv)
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
    return Config(server_options(args), redis, args.keep, args.intake_bytes)
