"""Algorithms by name: ours, and those that other packages offer as entry points of the group "marless.algos"."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from marless.algos.base import Algorithm
from marless.errors import SpecError, unknown_name

_MODULES = {"ippo": "marless.algos.ippo", "mappo": "marless.algos.mappo"}
"""Name → module with an `ALGORITHM`."""


def algorithm(name: str) -> Algorithm:
    """Look an algorithm up; raises SpecError with the nearest match for a name that is not registered."""
    if name in _MODULES:
        ours: Algorithm = import_module(_MODULES[name]).ALGORITHM
        return ours
    others = entry_points(group="marless.algos")
    if name in others.names:
        theirs: Algorithm = others[name].load()
        return theirs
    raise SpecError(unknown_name("algorithm", name, _MODULES.keys() | others.names))
