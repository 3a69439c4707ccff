"""The choice of a launcher on the command line of a pool, and its options."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field

from marless.errors import SpecError
from marless.fleet.launchers.base import Options
from marless.rpc.process import add_option
from marless.rpc.security import Security

CONNECT_S = "connect_s"


@dataclass(frozen=True)
class Choice:
    """The launcher that an operator has chosen, and its options."""

    name: str = "local"
    options: Options = field(default_factory=dict)


LOCAL = Choice()


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Add --launcher to the options of a pool."""
    what = "what starts workers: local, external, or another package's; with options: name,key=value,…"
    add_option(parser, "--launcher", "local", what, _choice)


def limit_of(parser: argparse.ArgumentParser, choice: Choice, workers: int, security: Security) -> int:
    """The largest number of workers that a pool starts; ends the process if no worker could ever connect."""
    limit = 0 if choice.name == "external" else workers
    if not limit and security.tokens is None:
        parser.error("workers that something else starts show the token of their role: give this pool --tokens, too")
    return limit


def parse(text: str) -> Choice:
    """Read `name,key=value,…`; raises SpecError."""
    name, *pairs = (part.strip() for part in text.split(","))
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals or key in options:
            raise SpecError(f"{text!r}: {pair!r} is no further option; write name,key=value,…")
        options[key] = value
    return Choice(name, options)


def _choice(text: str) -> Choice:
    try:
        return parse(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds_of(launcher: str, options: Options, default_s: float) -> float:
    """The option `connect_s` of a launcher that has no other; raises SpecError."""
    if unknown := [key for key in options if key != CONNECT_S]:
        raise SpecError(f"launcher {launcher}: no option {unknown[0]!r}; it has {CONNECT_S}")
    try:
        connect_s = float(options.get(CONNECT_S, default_s))
    except ValueError:
        connect_s = math.nan
    if not 0 < connect_s < math.inf:
        raise SpecError(f"launcher {launcher}: {CONNECT_S}={options[CONNECT_S]}: give a number of seconds above 0")
    return connect_s
