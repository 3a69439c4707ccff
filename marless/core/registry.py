"""Registries of extensions that a job or an operator selects by name: marless's modules, its plug-ins, other packages.

Plug-ins are packages of marless's distribution that nothing in `marless` imports (plugins/README.md). They are found by
entry points, as other packages are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Any, Generic, TypeVar

from marless.core.errors import MarlessError, SpecError, told, unknown_name

Entry = TypeVar("Entry")
DISTRIBUTION = "marless"


@cache
def plugged(group: str) -> Mapping[str, EntryPoint]:
    """The plug-ins of one kind, by name; reads only what marless's own distribution declares, and imports nothing."""
    try:
        return {each.name: each for each in distribution(DISTRIBUTION).entry_points.select(group=group)}
    except PackageNotFoundError:  # run from its sources, without being installed
        return {}


def declared(group: str) -> Mapping[str, EntryPoint]:
    """All entry points of one kind, by name. No other package can replace a plug-in of marless."""
    # Of two packages with one name, the first on the path counts. A tuple, because from Python 3.12 on `reversed` asks
    # for positions, and entry points are looked up by name.
    others = reversed(tuple(entry_points(group=group)))
    return {**{each.name: each for each in others}, **plugged(group)}


def declaration(group: str, name: str) -> EntryPoint | None:
    """The entry point of this name; None if there is none. It is quick for a plug-in of marless."""
    return plugged(group).get(name) or declared(group).get(name)


def loaded(kind: str, entry: EntryPoint) -> Any:  # Any: the object of an entry point can be anything
    """Import what an entry point names; raises SpecError with one sentence if that fails."""
    try:
        return entry.load()
    except MarlessError:
        raise
    except Exception as error:
        package = entry.dist.name if entry.dist else entry.module
        raise SpecError(
            f"{kind} {entry.name}: {entry.value} of the package {package} cannot be loaded: {told(error)}"
        ) from error


@dataclass(frozen=True)
class Registry(Generic[Entry]):
    """The extensions of one kind. A module is imported only when its entry is looked up."""

    kind: str
    """The kind, as error messages name it."""
    group: str
    """The group of entry points to search. The name of an entry point is that of its entry, its object the entry."""
    attribute: str
    """The name of the entry in each of marless's modules that has one."""
    modules: Mapping[str, str]
    """Name → module of marless's own entries, or "module:name of the entry" if a module has several. They take
    precedence: an entry point cannot replace them."""

    def find(self, name: str) -> Entry:
        """Look up an entry; raises SpecError with the nearest match if the name is not registered."""
        if name in self.modules:
            module, _, attribute = self.modules[name].partition(":")
            ours: Entry = getattr(import_module(module), attribute or self.attribute)
            return ours
        entry = declaration(self.group, name)
        if entry is None:
            raise SpecError(unknown_name(self.kind, name, self.names()))
        theirs: Entry = loaded(self.kind, entry)
        return theirs

    def names(self) -> set[str]:
        """The names of all entries, of which none is imported."""
        return {*self.modules, *declared(self.group)}
