"""Dataclasses from JSON: what their annotations say is built, and everything else is refused."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from marless.core.documents import dataclass_of
from marless.core.limits import MAX_COUNT


@dataclass(frozen=True, kw_only=True)
class Wheel:
    inches: float


@dataclass(frozen=True, kw_only=True)
class Bicycle:
    name: str
    kind: Literal["road", "city"]
    gears: int
    price: float | None = None
    wheels: tuple[Wheel, ...] = ()
    spare: Wheel | None = None
    rides: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    sold: bool = False


LEAST = {"name": "a", "kind": "city", "gears": 3}


def test_all_fields_are_built_and_those_that_are_missing_have_their_defaults():
    assert dataclass_of(Bicycle, LEAST) == Bicycle(name="a", kind="city", gears=3)
    whole = LEAST | {"price": 100, "wheels": [{"inches": 28}], "spare": {"inches": 27.5}, "sold": True}
    found = dataclass_of(Bicycle, whole | {"rides": {"x": 1e300}, "notes": {"any": [None, {}]}})
    assert found == Bicycle(
        name="a", kind="city", gears=3, price=100.0, wheels=(Wheel(inches=28.0),), spare=Wheel(inches=27.5), sold=True,
        rides={"x": 1e300}, notes={"any": [None, {}]},
    )  # fmt: skip
    assert type(found.price) is float and type(found.spare) is Wheel


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": None}, {"name": 1}, {"kind": "boat"}, {"gears": "3"}, {"gears": 3.0}, {"gears": True}, {"sold": 1}),
        *({"wheels": {}}, {"wheels": "ab"}, {"wheels": [1]}, {"wheels": [{"inches": 1, "of": 2}]}, {"spare": []}),
        *({"gears": MAX_COUNT + 1}, {"gears": -MAX_COUNT - 1}, {"gears": 10**400}, {"price": 1e300}, {"price": -1e300}),
        *({"price": math.nan}, {"price": math.inf}, {"price": 10**400}, {"price": True}, {"spare": {"inches": 1e300}}),
        *({"rides": {"x": "1"}}, {"rides": {"x": None}}, {"rides": {"x": 10**400}}, {"colour": "red"}, {"\ud800": 1}),
    ],
)
def test_what_no_annotation_says_is_refused(wrong):
    with pytest.raises(ValueError, match=r"Expected|Invalid|unknown field|out of range|surrogates"):
        dataclass_of(Bicycle, LEAST | wrong)


@pytest.mark.parametrize("data", [None, [], "a", 1, {}, {"name": "a"}])
def test_what_is_no_such_object_is_refused(data):
    with pytest.raises(ValueError, match=r"Expected `object`|missing required field"):
        dataclass_of(Bicycle, data)


def test_numbers_may_be_large_where_nothing_is_computed_from_them_and_are_always_finite():
    assert dataclass_of(Bicycle, LEAST | {"price": 1e300}, unlimited=(Bicycle,)).price == 1e300
    with pytest.raises(ValueError, match="Expected"):
        dataclass_of(Bicycle, LEAST | {"spare": {"inches": 1e300}}, unlimited=(Bicycle,))
    for wrong in (math.nan, math.inf, -math.inf, 10**400):
        with pytest.raises(ValueError, match=r"Expected|out of range"):
            dataclass_of(Bicycle, LEAST | {"price": wrong}, unlimited=(Bicycle,))
