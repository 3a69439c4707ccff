"""Launchers by name: `local`, `external`; those of plug-ins and other packages by entry points (marless.launchers).

The object of an entry point is a callable `(program, options) -> Launcher` that raises SpecError for invalid options.
What a launcher leaves behind when its pool is killed can be found by an entry point of the launcher's name in the group
marless.leftovers: a callable `(options) -> Leftovers | None`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from marless.core.errors import SpecError, told
from marless.core.registry import Registry
from marless.fleet.launchers.base import Launcher, Leftovers, Options, WorkerProgram
from marless.fleet.launchers.options import Choice

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
