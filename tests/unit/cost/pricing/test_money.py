"""Exact money: rates and roundings, by hand."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from marless.cost.pricing import Rate, milliseconds, per_gb_s, per_h


def test_a_gb_second_of_lambda():
    """1,024 MB for 1,000 ms at $0.0000166667."""
    assert per_gb_s(Decimal("0.0000166667")).of(1024 * 1000) == 16_666_700


def test_an_hour_of_a_machine():
    assert per_h(Decimal("2.448")).of(3_600_000) == 2_448_000_000_000
    assert per_h(Decimal("2.448")).of(1) == 680_000


def test_charges_are_rounded_half_up_to_the_picodollar():
    third = Rate.per(Decimal(1), 3 * 10**12)
    assert [third.of(units) for units in (0, 1, 2, 3, 4, 5)] == [0, 0, 1, 1, 1, 2]
    assert Rate.per(Decimal(1), 2 * 10**12).of(1) == 1


def test_durations_are_rounded_up():
    assert [milliseconds(s) for s in (0.0, 0.0001, 0.001, 0.0011, 1.15, -1.0)] == [0, 1, 1, 2, 1150, 0]
    assert milliseconds(0.101, granularity_ms=100) == 200


@given(st.integers(0, 10**6), st.floats(1.5e9, 2e9))
def test_a_difference_of_clocks_is_the_whole_milliseconds_that_were_meant(ms, now):
    assert milliseconds((now + ms / 1000) - now) == ms
