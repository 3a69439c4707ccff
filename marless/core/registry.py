"""Registries of extensions that a job selects by name: marless's own modules, and entry points of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from marless.core.errors import SpecError, unknown_name

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Registry(Generic[Entry]):
    """The extensions of one kind. A module is imported only when its entry is looked up."""

    kind: str
    """The kind, as error messages name it."""
    group: str
    """The group of entry points to search. The name of an entry point is that of its entry, its object the entry."""
    attribute: str
    """The name of the entry in each of marless's modules."""
    modules: Mapping[str, str]
    """Name → module of marless's own entries. They take precedence: an entry point cannot replace them."""

    def find(self, name: str) -> Entry:
        """Look up an entry; raises SpecError with the nearest match if the name is not registered."""
        if name in self.modules:
            ours: Entry = getattr(import_module(self.modules[name]), self.attribute)
            return ours
        others = entry_points(group=self.group)
        if name in others.names:
            theirs: Entry = others[name].load()
            return theirs
        raise SpecError(unknown_name(self.kind, name, self.names()))

    def names(self) -> set[str]:
        """The names of all entries, of which none is imported."""
        return {*self.modules, *entry_points(group=self.group).names}
