"""Settings of a job as a reference: type, bounds, default and meaning of each, read from the fields that check them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from marless.core.settings import Section
from marless.jobs.scaling.base import SCALING_POLICIES
from marless.jobs.schedules.base import SCHEDULES
from marless.jobs.sharing.base import SHARING_POLICIES
from marless.jobs.spec import JobSpec
from marless.learning.aggregation.config import RULES
from marless.learning.algos.registry import ALGORITHMS
from marless.learning.similarity.measures import SIMILARITIES

_WORDS = {int: "whole number", float: "number", bool: "true or false", str: "text", NoneType: "null", dict: "section"}
_NAMES = {
    "algorithm.name": ALGORITHMS.names,
    "schedule.name": SCHEDULES.names,
    "scaling.name": SCALING_POLICIES.names,
    "sharing.name": SHARING_POLICIES.names,
    "sharing.similarity.name": SIMILARITIES.names,
    "schedule.aggregation.rule": RULES.keys,
}
"""Settings that choose what others there are, and their values."""
_SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


@dataclasses.dataclass(frozen=True)
class SettingInfo:
    """One setting of a job."""

    path: str
    """Sections and name, as `--set` takes it: "algorithm.lr"."""
    kind: str
    """Type and bounds in words: "number > 0"."""
    default: Any  # Any: YAML
    """The value if nothing is said; `REQUIRED` if a job must say it."""
    about: str


REQUIRED = "required"


def settings_of(job: JobSpec) -> list[SettingInfo]:
    """All settings that this job can have, with its algorithm, schedule and policies, in the order of job files."""
    return list(_below(job, "", given=True))


def _below(section: BaseModel | Section, prefix: str, *, given: bool) -> Iterator[SettingInfo]:
    """The settings of a section: one that jobs must give has the defaults of its type, others may have values."""
    for name, kind, default, about in _fields(type(section)):
        value = getattr(section, name)
        path = f"{prefix}{_alias(section, name)}"
        if isinstance(value, BaseModel | Section):
            yield from _below(value, f"{path}.", given=given and default == REQUIRED)
        else:
            # A section within another one may be there by default, with values for what it requires.
            own = default if given or (default == REQUIRED and path.count(".") == 1) else value
            names = ", ".join(sorted(_NAMES[path]())) if path in _NAMES else ""
            yield SettingInfo(path, names or kind, _plain(own), about)


def _alias(section: BaseModel | Section, name: str) -> str:
    return type(section).model_fields[name].alias or name if isinstance(section, BaseModel) else name


def _fields(section: type[BaseModel | Section]) -> Iterator[tuple[str, str, Any, str]]:
    """Name, type and bounds, default and meaning of each field."""
    if issubclass(section, BaseModel):
        for name, field in section.model_fields.items():
            default = REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
            yield name, _kind(field.annotation, _bounds(field.metadata)), default, field.description or ""
        return
    kinds = get_type_hints(section, include_extras=True)
    for each in dataclasses.fields(section):
        default = REQUIRED if each.default is dataclasses.MISSING else each.default
        yield each.name, _kind(kinds[each.name], each.metadata), default, each.metadata.get("description", "")


def _bounds(metadata: list[Any]) -> Mapping[str, Any]:  # Any: what pydantic keeps beside an annotation
    return {sign: getattr(each, sign) for each in metadata for sign in _SIGNS if getattr(each, sign, None) is not None}


def _kind(annotation: Any, bounds: Mapping[str, Any]) -> str:
    """A type in words, with its bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        beside = arguments[1]
        own = beside.metadata if hasattr(beside, "metadata") else [beside]
        return _kind(arguments[0], own if isinstance(own, Mapping) else _bounds(own))
    if origin in (Union, UnionType):
        # Bounds that stand beside a union are of its numbers; null comes last.
        kinds = sorted(arguments, key=lambda kind: kind is NoneType)
        return ", or ".join(_kind(kind, {} if kind is NoneType else bounds) for kind in kinds)
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin is tuple:
        return f"list, each: {_kind(arguments[0], bounds)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel | Section):
        return f"section of {', '.join(name for name, *_ in _fields(annotation))}"
    words = _WORDS.get(origin or annotation, "any value")
    return " and ".join([f"{words} {said}" if not n else said for n, said in enumerate(_said(bounds))]) or words


def _said(bounds: Mapping[str, Any]) -> list[str]:
    numbers = {sign: bounds[sign] for sign in _SIGNS if sign in bounds}
    return [f"{_SIGNS[sign]} {int(each) if each == int(each) else each:,}" for sign, each in numbers.items()]


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Section):
        return value.model_dump()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
