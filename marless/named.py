"""Sections of a job file whose `name` decides which fields they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from marless.algos.base import Strict
from marless.errors import SpecError

Config = TypeVar("Config", bound=Strict)


def named(
    value: object, base: type[Config], type_of: Callable[[str], type[Config]], example: str, default: str | None = None
) -> Config:
    """Read a section given as a name or a mapping; `default` is the name of one that gives none.

    Raises ValueError, showing `example`, without a name; and pydantic's ValidationError for its fields.
    """
    if isinstance(value, base):
        return value
    name = name_of(value) or default
    if not isinstance(name, str):
        raise ValueError(f"needs a name, e.g. `{example}`")
    try:
        config_type = type_of(name)
    except SpecError as error:
        raise ValueError(str(error)) from None
    return config_type.model_validate({"name": name} if isinstance(value, str) else value)


def name_of(section: object) -> object:
    """What a section calls itself: its `name`, or the section if it is only a name."""
    return section.get("name") if isinstance(section, Mapping) else section
