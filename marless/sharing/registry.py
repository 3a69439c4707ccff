"""Sharing policies by name: ours, and those of other packages: entry points of the group "marless.sharing"."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from marless.errors import SpecError, unknown_name
from marless.sharing.base import SharingKind

_MODULES = {name: f"marless.sharing.{name}" for name in ("fixed", "marless")}
"""Name → module with a `SHARING`."""


def sharing(name: str) -> SharingKind:
    """Look a sharing policy up; raises SpecError with the nearest match for a name that is not registered."""
    if name in _MODULES:
        ours: SharingKind = import_module(_MODULES[name]).SHARING
        return ours
    others = entry_points(group="marless.sharing")
    if name in others.names:
        theirs: SharingKind = others[name].load()
        return theirs
    raise SpecError(unknown_name("sharing policy", name, _MODULES.keys() | others.names))
