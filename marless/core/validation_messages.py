"""Validation messages: turns pydantic's errors into sentences that say where, what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from marless.core.errors import LONGEST_SHOWN, shown, unknown_name

_MOST_SENTENCES = 20
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "model": "a section with fields",
    "dict": "a section with fields",
    "tuple": "a list",
    "invalid-json-value": "text, a number, true, false, null, a list or a section of those",
}
"""First word of pydantic's error type → what it expected."""
_BOUNDS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "string_too_long": "at most {max_length} characters",
}
Inner = Mapping[tuple[str, ...], type[BaseModel]]
"""Path in the job → type of the section there."""
Detail = Any  # pydantic's ErrorDetails, whose context depends on the type of error


def sentences(error: ValidationError, model: type[BaseModel], inner: Inner) -> list[str]:
    """One sentence for each of the first `_MOST_SENTENCES` invalid fields, and the number of further ones.

    `inner` holds the types of the sections whose type depends on their name.
    """
    found: dict[tuple[str, ...], list[tuple[Detail, object]]] = {}
    for detail in error.errors(include_url=False):
        path, owner = _locate(detail["loc"], model, inner)
        found.setdefault(path, []).append((detail, owner))
    # A value of a union type fails once per member of the union; the deepest error is about the one that was meant.
    above = {path[:depth] for path in found for depth in range(len(path))}
    refused = [path for path in found if path not in above]
    told = [": ".join(filter(None, (_shown(path), _sentence(path, found[path])))) for path in refused[:_MOST_SENTENCES]]
    more = len(refused) - len(told)
    return [*told, *([f"and {more} more mistakes"] if more else [])]


def _shown(path: Sequence[str]) -> str:
    """A field's path in the job, on one line even if a name contains line breaks."""
    return ".".join(part if part.isprintable() and len(part) <= LONGEST_SHOWN else shown(part) for part in path)


def _locate(loc: Sequence[int | str], model: type[BaseModel], inner: Inner) -> tuple[tuple[str, ...], object]:
    """The field's path as the user wrote it, without pydantic's names of union members, and the type that owns it."""
    path: list[str] = []
    owner: object = model
    here: Any = model  # Any: an annotation
    for part in loc:
        branches = [branch for branch in get_args(here) if branch is not NoneType] if _is_union(here) else [here]
        if len(branches) > 1:
            here = next((branch for branch in branches if getattr(branch, "__name__", "") == part), None)
            continue
        owner, path = branches[0], [*path, str(part)]
        here = inner.get(tuple(path)) or _field(owner, str(part))
    return tuple(path), owner


def _is_union(annotation: object) -> bool:
    return get_origin(annotation) in (Union, UnionType)


def _field(owner: object, name: str) -> Any:  # Any: an annotation
    if not isinstance(owner, type) or not issubclass(owner, BaseModel):
        return None
    return next((f.annotation for key, f in owner.model_fields.items() if (f.alias or key) == name), None)


def _sentence(path: tuple[str, ...], details: list[tuple[Detail, object]]) -> str:
    detail, owner = details[0]
    match detail["type"]:
        case "extra_forbidden" | "invalid_key":
            known = owner.model_fields if isinstance(owner, type) and issubclass(owner, BaseModel) else {}
            return unknown_name("field", path[-1], [field.alias or name for name, field in known.items()])
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
