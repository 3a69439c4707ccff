"""Algorithms by name."""

from __future__ import annotations

from marless.algos.base import Algorithm
from marless.errors import SpecError, unknown_name

_NAMES: dict[str, str] = {}  # name → "module:object"


def algorithm(name: str) -> Algorithm:
    """Look an algorithm up; raises SpecError with the nearest match for a name that is not registered."""
    raise SpecError(unknown_name("algorithm", name, _NAMES))
