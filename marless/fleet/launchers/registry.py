"""Launchers by name: `local`, `docker`, `ray`, `ec2`, `external`; other packages' by entry points (marless.launchers).

The object of an entry point is a callable `(program, options) -> Launcher` that raises SpecError for invalid options.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from marless.core.errors import SpecError, told
from marless.core.registry import Registry
from marless.fleet.launchers.base import Launcher, Options, WorkerProgram
from marless.fleet.launchers.options import Choice

Make = Callable[[WorkerProgram, Options], Launcher]
LAUNCHERS: Registry[Make] = Registry(
    kind="launcher",
    group="marless.launchers",
    attribute="LAUNCHER",
    modules={name: f"marless.fleet.launchers.{name}" for name in ("local", "docker", "external")}
    | {name: f"marless.fleet.launchers.{name}.launcher" for name in ("ec2", "ray")},
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
