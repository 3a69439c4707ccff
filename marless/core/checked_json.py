"""Builds dataclasses from JSON that others may have written: each field as its annotation says, and no others."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from marless.core.limits import MAX_COUNT

if TYPE_CHECKING:
    from msgspec import Struct

Part = TypeVar("Part")


def built(kind: type[Part], data: object, *, unlimited: Collection[type] = ()) -> Part:
    """A dataclass, with those inside it, from parsed JSON.

    Raises ValueError, which names the place, for a field that is missing, unknown or of another type, and for whole
    numbers, and floats that are a field of their own, beyond `MAX_COUNT`; in the classes of `unlimited`, such floats
    are only finite. Floats in lists and mappings may have any value.
    """
    import msgspec  # here, because many commands start without it

    # msgspec refuses unknown fields in its own Structs only, so that the data goes through one of these.
    struct = _struct(kind, frozenset(unlimited))  # type: ignore[arg-type]  # classes are hashable
    checked = msgspec.convert(data, struct)
    return msgspec.convert(checked, kind, from_attributes=True)


@cache
def _struct(kind: Any, unlimited: frozenset[type]) -> type[Struct]:  # Any: a dataclass
    """The Struct that takes what `built` says of a dataclass."""
    import msgspec

    most = sys.float_info.max if kind in unlimited else MAX_COUNT
    number = Annotated[float, msgspec.Meta(ge=-most, le=most)]
    whole = Annotated[int, msgspec.Meta(ge=-MAX_COUNT, le=MAX_COUNT)]

    def strict(hint: Any) -> Any:  # Any: an annotation
        if hint is int or hint is float:
            return whole if hint is int else number
        if dataclasses.is_dataclass(hint):
            return _struct(hint, unlimited)  # type: ignore[arg-type]  # as above
        if isinstance(hint, UnionType):
            return reduce(or_, map(strict, get_args(hint)))
        if origin := get_origin(hint):
            return origin[tuple(each if each is float else strict(each) for each in get_args(hint))]
        return hint

    hints = get_type_hints(kind)
    fields: list[Any] = []  # Any: (name, annotation, default), the last one only if there is one
    for each in dataclasses.fields(kind):
        defaults = [msgspec.field(default_factory=each.default_factory)] if callable(each.default_factory) else []
        defaults += [each.default] if each.default is not dataclasses.MISSING else []
        fields.append((each.name, strict(hints[each.name]), *defaults))
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, forbid_unknown_fields=True)
