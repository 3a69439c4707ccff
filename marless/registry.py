"""What jobs choose by name: ours, and what other packages offer as entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from marless.errors import SpecError, unknown_name

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Registry(Generic[Entry]):
    """Entries of one kind. A module is imported when its entry is asked for, and not before."""

    kind: str
    """As a sentence names it."""
    group: str
    """Of entry points, whose names are the entries' and whose objects are entries."""
    attribute: str
    """What a module of ours calls its entry."""
    modules: Mapping[str, str]
    """Name → module, of ours. They come first: nobody replaces them."""

    def find(self, name: str) -> Entry:
        """Look an entry up; raises SpecError with the nearest match for a name that is not registered."""
        if name in self.modules:
            ours: Entry = getattr(import_module(self.modules[name]), self.attribute)
            return ours
        others = entry_points(group=self.group)
        if name in others.names:
            theirs: Entry = others[name].load()
            return theirs
        raise SpecError(unknown_name(self.kind, name, self.modules.keys() | others.names))
