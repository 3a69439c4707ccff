"""Scaling policies by name: ours, and those of other packages: entry points of the group "marless.scaling"."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from marless.errors import SpecError, unknown_name
from marless.scaling.base import ScalingKind

_MODULES = {name: f"marless.scaling.{name}" for name in ("fixed", "max", "adapt", "nitro", "gns", "marless", "minions")}
"""Name → module with a `SCALING`."""


def scaling(name: str) -> ScalingKind:
    """Look a scaling policy up; raises SpecError with the nearest match for a name that is not registered."""
    if name in _MODULES:
        ours: ScalingKind = import_module(_MODULES[name]).SCALING
        return ours
    others = entry_points(group="marless.scaling")
    if name in others.names:
        theirs: ScalingKind = others[name].load()
        return theirs
    raise SpecError(unknown_name("scaling policy", name, _MODULES.keys() | others.names))
