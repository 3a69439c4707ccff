"""Launchers by name: `local`, `external`; those of plug-ins and other packages by entry points (marless.launchers).

The object of an entry point is a callable `(program, options) -> Launcher` that raises SpecError for invalid options.
An operator chooses one on the command line of a pool, with its options. What a launcher leaves behind when its pool is
killed can be found by an entry point of the launcher's name in the group marless.leftovers: a callable
`(options) -> Leftovers | None`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from marless.core.errors import SpecError, told
from marless.core.registry import Registry
from marless.fleet.launchers.base import Launcher, Leftovers, Options, WorkerProgram
from marless.rpc.process import add_option
from marless.rpc.security import Security

Make = Callable[[WorkerProgram, Options], Launcher]
LAUNCHERS: Registry[Make] = Registry(
    kind="launcher",
    group="marless.launchers",
    attribute="LAUNCHER",
    modules={name: f"marless.fleet.launchers.{name}" for name in ("local", "external")},
)
FindLeftovers = Callable[[Options | None], Leftovers | None]
"""Given the options of a launcher, or None if the operator has chosen another; None: nothing can be left here."""
LEFTOVERS: Registry[FindLeftovers] = Registry(
    kind="what is left of launcher", group="marless.leftovers", attribute="LEFTOVERS", modules={}
)


@asynccontextmanager
async def launching(choice: Choice, program: WorkerProgram, make: Make | None = None) -> AsyncIterator[Launcher]:
    """Provide the chosen launcher, or that of `make`; when the context ends, all that it has started is ended.

    Raises SpecError for an unknown name, for invalid options, and for all errors of making a launcher.
    """
    launcher = (make or partial(_make, choice.name))(program, choice.options)
    try:
        yield launcher
    finally:
        await launcher.close()


def _make(name: str, program: WorkerProgram, options: Options) -> Launcher:
    try:
        return LAUNCHERS.find(name)(program, options)
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"launcher {name}: cannot be made with these options: {told(error)}") from error


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
        "what starts workers: local, external, a plug-in's (docker, ec2, kubernetes, ray), or another package's; with "
        "options: name,key=value,…"
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
