"""The modules whose environments jobs may name beside PettingZoo's own: only what this process's operator trusts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from marless.core.errors import SpecError

VARIABLE = "MARLESS_ENV_MODULES"
MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
"""The name of a module."""


def allow(names: Sequence[str]) -> None:
    """Set the modules that this process allows in addition to PettingZoo's own; called by its `__main__`."""
    os.environ[VARIABLE] = ",".join(names)


def modules() -> tuple[str, ...]:
    """The modules that the operator of this process allows, each with its submodules. Raises SpecError."""
    return parse(os.environ.get(VARIABLE, ""))


def parse(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of modules; raises SpecError for an invalid name."""
    if not text.strip():
        return ()
    listed = tuple(name.strip() for name in text.split(","))
    for name in listed:
        if not MODULE.fullmatch(name):
            raise SpecError(f"{VARIABLE} or --env-modules: {name!r} is not the name of a module; e.g. cogrid,my_games")
    return listed
