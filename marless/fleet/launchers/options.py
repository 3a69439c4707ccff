"""The choice of a launcher on the command line of a pool, and its options."""

from __future__ import annotations

import argparse
import math
from collections.abc import Collection
from dataclasses import dataclass, field

from marless.core.errors import SpecError
from marless.fleet.launchers.base import Options
from marless.rpc.process import add_option
from marless.rpc.security import Security

CONNECT_S = "connect_s"
_UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30}


@dataclass(frozen=True)
class Choice:
    """The launcher that an operator has chosen, and its options."""

    name: str = "local"
    options: Options = field(default_factory=dict)


LOCAL = Choice()


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Add --launcher to the options of a pool."""
    what = (
        "what starts workers: local, external, a plug-in's (docker, ray, ec2), or another package's; with options: "
        "name,key=value,…"
    )
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
    check_names(launcher, options, (CONNECT_S,))
    return above_0(launcher, options, CONNECT_S, default_s, "seconds")


def check_names(launcher: str, options: Options, known: Collection[str]) -> None:
    """Raise SpecError for an option that the launcher does not have."""
    if unknown := [key for key in options if key not in known]:
        raise SpecError(f"launcher {launcher}: no option {unknown[0]!r}; it has {', '.join(known)}")


def above_0(launcher: str, options: Options, key: str, default: float, unit: str) -> float:
    """An option that is a finite number above 0, of a unit in the plural; raises SpecError."""
    try:
        value = float(options.get(key, default))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise SpecError(f"launcher {launcher}: {key}={options[key]}: give a number of {unit} above 0")
    return value


def size_bytes(launcher: str, options: Options, key: str, default: str) -> int:
    """An option that is a number of bytes, such as 512m or 2g (of 1,024); raises SpecError."""
    text = options.get(key, default)
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "b")
    if not number.isdecimal() or not int(number) or unit not in _UNITS:
        raise SpecError(f"launcher {launcher}: {key}={text}: give a size, such as 512m or 2g")
    return int(number) * _UNITS[unit]
