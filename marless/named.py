"""Job sections whose `name` field selects their config type, such as `algorithm: {name: ippo}`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from marless.algos.base import Strict
from marless.errors import SpecError

Config = TypeVar("Config", bound=Strict)


def named(
    value: object, base: type[Config], type_of: Callable[[str], type[Config]], example: str, default: str | None = None
) -> Config:
    """Validate a section given as a name or as a mapping; `default` is the name used if it has none.

    Raises ValueError, showing `example`, if there is no name or an unknown one, and pydantic's ValidationError for its
    fields.
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
    """The `name` of a section, or the section itself if it is only a name."""
    return section.get("name") if isinstance(section, Mapping) else section
