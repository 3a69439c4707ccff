"""Sections of a job: their base, and those whose `name` field selects their config type (`algorithm: {name: ippo}`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from marless.core.errors import SpecError


class Strict(BaseModel):
    """Base of every section of a job: immutable, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `true` where a number is due; pydantic takes it as 1."""
        if isinstance(value, bool) and info.field_name:
            kinds = _leaves(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and kinds & {int, float}:
                raise PydanticKnownError("float_type" if float in kinds else "int_type")
        return value


def _leaves(annotation: Any) -> set[Any]:
    """The types that an annotation allows: {int, NoneType} for `int | None`."""
    if get_origin(annotation) is Annotated:
        return _leaves(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return set().union(*map(_leaves, get_args(annotation)))
    return {annotation}


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
