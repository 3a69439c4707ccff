"""Sections of a job that are pydantic models: their base, and the sentences about what is invalid in a job.

The `name` field of some sections selects their config type: `algorithm: {name: ippo}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from marless.core.errors import LONGEST_SHOWN, SpecError, shown
from marless.core.settings import BOUNDS, FINITE, KINDS, InvalidSettingsError, Section, unknown_field

_MOST_SENTENCES = 20
_KINDS = {
    "int": KINDS[int],
    "float": KINDS[float],
    "decimal": KINDS[float],
    "finite": FINITE,
    "bool": KINDS[bool],
    "string": KINDS[str],
    "model": KINDS[dict],
    "dict": KINDS[dict],
    "tuple": KINDS[tuple],
    "invalid-json-value": "text, a number, true, false, null, a list or a section of those",
}
"""First word of pydantic's error type → what it expected."""
_BOUNDS = {
    "greater_than": BOUNDS["gt"][0],
    "greater_than_equal": BOUNDS["ge"][0],
    "less_than": BOUNDS["lt"][0],
    "less_than_equal": BOUNDS["le"][0],
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "string_too_long": "at most {max_length} characters",
}
AnySection: TypeAlias = "type[BaseModel] | type[Section]"
InnerSections = Mapping[tuple[str, ...], AnySection]
"""Path in the job → type of the section there."""
Detail = Any  # pydantic's ErrorDetails, whose context depends on the type of error


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


Config = TypeVar("Config", bound=BaseModel | Section)


def named(
    value: object, base: type[Config], type_of: Callable[[str], type[Config]], example: str, default: str | None = None
) -> Config:
    """Validate a section given as a name or as a mapping; `default` is the name used if it has none.

    Raises ValueError, showing `example`, if there is no name or an unknown one, and as the config type does for its
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
    return cast("Config", config_type.model_validate({"name": name} if isinstance(value, str) else value))


def name_of(section: object) -> object:
    """The `name` of a section, or the section itself if it is only a name."""
    return section.get("name") if isinstance(section, Mapping) else section


def validation_sentences(error: ValidationError, model: type[BaseModel], inner: InnerSections) -> list[str]:
    """One sentence for each of the first `_MOST_SENTENCES` invalid fields, and the number of further ones.

    `inner` holds the types of the sections whose type depends on their name.
    """
    found: dict[tuple[str, ...], list[tuple[Detail, object]]] = {}
    for detail in error.errors(include_url=False):
        path, owner = _locate(detail["loc"], model, inner)
        if isinstance(invalid := detail.get("ctx", {}).get("error"), InvalidSettingsError):
            for place, sentence in invalid.mistakes:
                found[*path, *place] = [({"type": "value_error", "msg": sentence}, owner)]
        else:
            found.setdefault(path, []).append((detail, owner))
    # A value of a union type fails once per member of the union; the deepest error is about the one that was meant.
    above = {path[:depth] for path in found for depth in range(len(path))}
    refused = [path for path in found if path not in above]
    told = []
    for path in refused[:_MOST_SENTENCES]:
        # On one line even if a name contains line breaks.
        names = (part if part.isprintable() and len(part) <= LONGEST_SHOWN else shown(part) for part in path)
        told.append(": ".join(filter(None, (".".join(names), _sentence(path, found[path])))))
    more = len(refused) - len(told)
    return [*told, *([f"and {more} more mistakes"] if more else [])]


def _locate(loc: Sequence[int | str], model: type[BaseModel], inner: InnerSections) -> tuple[tuple[str, ...], object]:
    """The field's path as the user wrote it, without pydantic's names of union members, and the type that owns it."""
    path: list[str] = []
    owner: object = model
    here: Any = model  # Any: an annotation
    for part in loc:
        union = get_origin(here) in (Union, UnionType)
        branches = [branch for branch in get_args(here) if branch is not NoneType] if union else [here]
        if len(branches) > 1:
            here = next((branch for branch in branches if getattr(branch, "__name__", "") == part), None)
            continue
        owner, path = branches[0], [*path, str(part)]
        here = inner.get(tuple(path)) or _field(owner, str(part))
    return tuple(path), owner


def _field(owner: object, name: str) -> Any:  # Any: an annotation
    if not isinstance(owner, type) or not issubclass(owner, BaseModel):
        return None
    return next((f.annotation for key, f in owner.model_fields.items() if (f.alias or key) == name), None)


def _sentence(path: tuple[str, ...], details: list[tuple[Detail, object]]) -> str:
    detail, owner = details[0]
    match detail["type"]:
        case "extra_forbidden" | "invalid_key":
            known = owner.model_fields if isinstance(owner, type) and issubclass(owner, BaseModel) else {}
            return unknown_field(path[-1], [field.alias or name for name, field in known.items()])
        case "missing":
            return "is missing; it has no default"
        case "value_error":
            return str(detail["msg"]).removeprefix("Value error, ")
    if detail["input"] is None:
        return "is empty; give it a value or leave it out"
    return f"got {shown(detail['input'])}; allowed: {' or '.join(dict.fromkeys(_allowed(each) for each, _ in details))}"


def _allowed(detail: Detail) -> str:
    kind = detail["type"]
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**detail["ctx"])
    return _KINDS.get(kind.partition("_")[0], str(detail["msg"]))
