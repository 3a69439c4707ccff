"""Set-up shared by all processes: options with MARLESS_* defaults, security, logging, and exit with the parent."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO, cast

from marless.core import documents
from marless.core.errors import SpecError, shown
from marless.core.log import Lines, structlog
from marless.core.process_environment import parsed_env_modules
from marless.rpc.addresses import can_be_dialled
from marless.rpc.roles import Role
from marless.rpc.security import SECRET_VARIABLES, Security


def add_option(
    parser: argparse.ArgumentParser, flag: str, default: str, description: str, kind: Callable[[str], object] = str
) -> None:
    """Add a flag whose default comes from an environment variable: --param-store reads MARLESS_PARAM_STORE."""
    variable = "MARLESS_" + flag.removeprefix("--").replace("-", "_").upper()
    default = os.environ.get(variable, default)
    parser.add_argument(flag, default=default, type=kind, help=f"{description} [${variable}]")


def add_peer(parser: argparse.ArgumentParser, flag: str, service: str) -> None:
    """Add the flag of a service that this process dials; it must be set, here or by its variable."""
    add_option(parser, flag, "", f"address of the {service}: host:port or unix:PATH", _dialled)


def _dialled(text: str) -> str:
    if not can_be_dialled(text):
        what = shown(text) if text else "not set"
        raise argparse.ArgumentTypeError(f"{what}: give the address to dial, such as 10.0.0.1:7070 or unix:PATH")
    return text


def add_caches(parser: argparse.ArgumentParser) -> None:
    """Add --param-store-caches, for actor workers and what starts them; see `marless.rpc.nearby`."""
    what = "comma list of caches of the param_store (--upstream), from one of which each actor worker reads weights"
    add_option(
        parser,
        "--param-store-caches",
        "",
        what,
        lambda text: tuple(_dialled(each.strip()) for each in text.split(",")) if text else (),
    )


def add_relay(parser: argparse.ArgumentParser) -> None:
    """Add --relay, for actor workers and what starts them; see `marless.rpc.nearby`."""
    what = "address of a relay on each worker's host, through which it gets tasks and sends small trajectories"
    add_option(parser, "--relay", "", what, lambda text: _dialled(text) if text else "")


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: integers of at least `least`."""

    def whole(text: str) -> int:
        with suppress(ValueError):
            if (number := documents.whole(text)) >= least:
                return number
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least {least}, such as 1000 or 1e3")

    return whole


def seconds(text: str) -> float:
    """An argparse type: a positive, finite number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds above 0")
    return value


def add_env_modules(parser: argparse.ArgumentParser) -> None:
    """Add --env-modules, for processes that create environments; see `marless.learning.envs.allowed`."""
    what = "comma list of modules whose environments jobs may name, besides PettingZoo's and Gymnasium's; trusted only"
    add_option(parser, "--env-modules", "", what, _modules)


def _modules(text: str) -> tuple[str, ...]:
    try:
        return parsed_env_modules(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Add the options shared by services and workers: tokens and TLS files."""
    add_option(parser, "--tokens", "", "directory with a file of tokens for each role (`marless tokens` makes it)")
    for name, what in (
        ("cert", "server certificate chain"),
        ("key", "server key"),
        ("ca", "certificate authority"),
    ):
        add_option(parser, f"--tls-{name}", "", f"PEM file of the {what}")


def add_worker_tls(parser: argparse.ArgumentParser) -> None:
    """Add the options for a certificate of a pool's workers that is not the pool's own."""
    add_option(parser, "--worker-tls-cert", "", "PEM file of the workers' certificate chain, if it is not the pool's")
    add_option(parser, "--worker-tls-key", "", "PEM file of the key of that certificate")


def security_of(args: argparse.Namespace, role: Role) -> Security:
    """The process's `Security`, from parsed options; the command line holds only paths, never tokens."""
    return Security.of_process(role, args.tokens, tls_cert=args.tls_cert, tls_key=args.tls_key, tls_ca=args.tls_ca)


def configure_logging(stream: TextIO | None = None) -> None:
    """Configure structured logs: one JSON object per line, by default on standard error. No call that logs raises."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", Lines(stream or sys.stderr))),
    )


def forget_secrets() -> None:
    """Remove tokens, and the paths of secrets, from this process's environment: third-party code may run here."""
    for name in SECRET_VARIABLES:
        os.environ.pop(name, None)  # /proc/<pid>/environ still shows the initial environment to the same user


async def stdin_closed() -> None:
    """Wait until standard input closes, which it does when the parent process ends, however it ends."""
    closed = asyncio.Event()

    class Watch(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            closed.set()

    transport, _ = await asyncio.get_running_loop().connect_read_pipe(Watch, sys.stdin)
    try:
        await closed.wait()
    finally:
        transport.close()
