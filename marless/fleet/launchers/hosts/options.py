"""What a host program is told: its command-line options, and what a cloud tells a machine of itself."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from marless.core.errors import SpecError
from marless.core.limits import MAX_ACTORS
from marless.rpc.process import (
    add_option,
    add_peer,
    add_process_options,
    at_least,
    forget_secrets,
    seconds,
    security_of,
)
from marless.rpc.roles import Role
from marless.rpc.security import Security


@dataclass(frozen=True)
class HostOptions:
    """Options of a host program."""

    role: Role
    pool: str
    security: Security
    slots: int = 0
    """Workers that the machine has room for; 0: as its pool computes it from the vCPUs."""
    alone_s: float = 900.0
    """Seconds without a pool after which the machine is ended."""
    end_command: tuple[str, ...] = ("shutdown", "-h", "now")
    """What ends the machine."""


def option_parser(program: str) -> argparse.ArgumentParser:
    """A parser of these options, to which a cloud's program may add its own."""
    description = "Starts and ends workers on this machine, as a pool orders to which it dials in."
    parser = argparse.ArgumentParser(prog=program, description=description)
    add_option(parser, "--role", "actor", "which workers: actor or learner", _role)
    add_peer(parser, "--pool", "pool")
    add_option(parser, "--slots", "0", "workers that this machine has room for; 0: as many as its vCPUs allow", _slots)
    add_option(parser, "--alone-s", "900", "seconds without a pool after which this machine is ended", seconds)
    what = "the command that ends this machine, in the words of a shell without its operators"
    add_option(parser, "--end-command", "shutdown -h now", what, _words)
    add_process_options(parser)
    return parser


def host_options(args: argparse.Namespace) -> HostOptions:
    """The options; raises SpecError for tokens and TLS files that cannot be used."""
    security = security_of(args, args.role)
    forget_secrets()
    security.channel_credentials(args.pool)
    if security.tokens:
        security.tokens.check()
        if not security.shown:
            raise SpecError(f"--tokens {args.tokens}: it has no token of the role {args.role}")
    return HostOptions(args.role, args.pool, security, args.slots, args.alone_s, args.end_command)


def _role(text: str) -> Role:
    if text not in (Role.ACTOR, Role.LEARNER):
        raise argparse.ArgumentTypeError(f"{text!r}: give actor or learner")
    return Role(text)


def _slots(text: str) -> int:
    if (slots := at_least(0)(text)) > MAX_ACTORS:
        raise argparse.ArgumentTypeError(f"{slots}: give at most {MAX_ACTORS}")
    return slots


def _words(text: str) -> tuple[str, ...]:
    try:
        words: Sequence[str] = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("give a command, such as 'shutdown -h now'")
    return tuple(words)


@dataclass(frozen=True)
class Identity:
    """Which machine this is."""

    name: str
    """Unique among all machines of a pool, and what its launcher knows it by."""
    machine: str = ""
    """For bills and people: id=…,provider=…,type=…,market=…,zone=…; "": not known."""


@dataclass(frozen=True)
class Notice:
    """The machine is about to end, or may be."""

    why: str
    seconds: float = 0.0
    """Until then; 0: not known."""


class Surroundings(Protocol):
    """What a cloud tells a machine of itself."""

    async def identify(self) -> Identity:
        """Which machine this is; waits until it is known."""
        ...

    def notices(self) -> AsyncIterator[Notice]:
        """Each notice, as it comes."""
        ...
