"""Many records of one kind as a JSON object of columns, an eighth as long as a list of objects and faster to write.

    {"rows": 3, "worker": {"prefix": "actor-", "each": ["0", "1", "2"]}, "cold": {"all": false},
     "start_s": {"micros": 1700000000000000, "each": [5, 0, 12]}}

A column has one value for all rows ("all"), or one for each. Texts may share a prefix, or, if few of them differ, be
digits for a list ("kinds"), one or more for each row. Numbers may be whole microseconds or milliseconds after a common
base; they are written so only if that gives back the same floating-point numbers. Rows of several kinds, such as actors
followed by learners, are a list of tables, each of one kind.
"""

from __future__ import annotations

import dataclasses
import math
import os
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Any

FEWEST = 32
"""Shorter lists are written as lists of objects, which people and other programs read more easily."""
MOST = 10**6
"""Rows of all tables, so that a damaged one takes no memory without end."""
_RARE = 8
"""Texts of which each occurs so often, on average, are written as numbers."""
_DIGITS = string.digits + string.ascii_letters + "-_"
_PARTS = {"millis": 1e3, "micros": 1e6}
"""Columns of times, and into how many parts they divide a second."""
_LONGEST_S = 1e12
"""Seconds: larger numbers, infinite ones and those that are none are written as they are."""

Json = Any  # what JSON can hold
Rows = list[dict[str, Json]]


def encoded(
    rows: Sequence[Any],  # Any: dataclasses of one class
    kind: Callable[[Any], object] = lambda _row: "",
    *,
    fewest: int = FEWEST,
    optional: Collection[str] = (),
) -> Json:
    """Encode dataclasses whose fields JSON can hold, as tables, or if there are few as a list of objects.

    `kind` tells the kind of a row; by default, all are of one kind. Of `optional` fields, values that are the default
    are left out, in a table if all its rows have it.
    """
    fields = dataclasses.fields(rows[0]) if rows else ()
    default = {field.name: field.default for field in fields if field.name in optional}
    if len(rows) < fewest:
        return [{k: v for k, v in vars(row).items() if k not in default or v != default[k]} for row in rows]
    tables = [_table(list(alike), default) for _, alike in groupby(rows, kind)]
    return {"tables": tables} if len(tables) > 1 else tables[0]


def _table(rows: list[Any], default: Mapping[str, Json]) -> Json:  # Any: dataclasses of one class and kind
    names = [
        field.name
        for field in dataclasses.fields(rows[0])
        if field.name not in default or any(getattr(row, field.name) != default[field.name] for row in rows)
    ]
    return {"rows": len(rows), **{name: _column([getattr(row, name) for row in rows]) for name in names}}


def decoded(data: Json) -> Rows:
    """The rows of what `encoded` has written; raises TypeError, ValueError or KeyError for anything else."""
    if isinstance(data, list):
        return data
    tables = dict(data).get("tables", [data])
    counts = [table["rows"] for table in tables]
    if not all(isinstance(count, int) and count >= 0 for count in counts) or sum(counts) > MOST:
        raise ValueError(f"{counts!r:.80} rows")
    rows: Rows = []
    for table, count in zip(tables, counts, strict=True):
        columns = {name: _values(column, count) for name, column in table.items() if name != "rows"}
        rows += (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return rows


def _column(values: list[Json]) -> Json:
    first = values[0]
    # The usual case, without the text of each value. Zeros are left to `_same`, because 0.0 and -0.0 are equal here.
    if all(value == first and type(value) is type(first) for value in values) and first != 0.0:
        return {"all": first}
    if all(isinstance(value, str) for value in values):
        if len(kinds := sorted(set(values))) <= len(values) // _RARE:
            return {"kinds": kinds, "each": _numbered(kinds, values)}
        prefix = os.path.commonprefix(values)  # noqa: RUF071  # of texts, which are no paths
        return {"prefix": prefix, "each": [value[len(prefix) :] for value in values]}
    if all(isinstance(value, float) and abs(value) < _LONGEST_S for value in values):
        return _times(values)
    return {"all": first} if _same(values) else {"each": values}


def _same(values: list[Json]) -> bool:
    """True if all are the same as JSON, in which 0, 0.0, -0.0 and false differ."""
    return len(set(map(repr, values))) == 1


def _times(values: list[float]) -> Json:
    if _same(values):
        return {"all": values[0]}
    for name, parts in _PARTS.items():
        whole = [round(value * parts) for value in values]
        # Reading must give back the very same numbers, with the sign of a zero.
        if all(
            number / parts == value and (number or math.copysign(1.0, value) > 0)
            for number, value in zip(whole, values, strict=True)
        ):
            base = min(whole)
            return {name: base, "each": [number - base for number in whole]}
    return {"each": values}


def _values(column: dict[str, Json], count: int) -> Sequence[Json]:
    if "all" in column:
        return [column["all"]] * count
    each: list[Json] | str = column["each"]
    if isinstance(each, str) and "kinds" in column:
        width = len(each) // max(count, 1)
        each = [each[at : at + width] for at in range(0, len(each), max(width, 1))]
    if not isinstance(each, list) or len(each) != count:
        raise ValueError(f"a column has not the {count} rows of its table")
    if "kinds" in column:
        return [_kind(column["kinds"], number) for number in each]
    if "prefix" in column:
        return [column["prefix"] + rest for rest in each]
    for name, parts in _PARTS.items():
        if name in column:
            base = column[name]
            for number in (base, *each):
                if not isinstance(number, int):
                    raise TypeError(f"{number!r:.80} is no number of parts of a second")
            return [(base + offset) / parts for offset in each]
    return each


def _numbered(kinds: list[str], values: list[str]) -> str:
    """The number of each value's kind in digits, as many for each as the largest needs."""
    width = 1
    while len(_DIGITS) ** width < len(kinds):
        width += 1
    powers = [len(_DIGITS) ** power for power in reversed(range(width))]
    digits = ("".join(_DIGITS[number // power % len(_DIGITS)] for power in powers) for number in range(len(kinds)))
    numbers = dict(zip(kinds, digits, strict=True))
    return "".join(numbers[value] for value in values)


def _kind(kinds: Json, number: Json) -> Json:
    if isinstance(number, str):
        number = reduce(lambda high, digit: high * len(_DIGITS) + _DIGITS.index(digit), number, 0)
    if not isinstance(kinds, list) or type(number) is not int or not 0 <= number < len(kinds):
        raise ValueError(f"{number!r:.80} is no number of one of its kinds")
    return kinds[number]
