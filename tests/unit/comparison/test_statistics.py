"""Intervals and ratios against numbers from a t table and a pocket calculator."""

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.comparison.statistics import difference, interval, ratio
from marless.errors import UnavailableError


def test_an_interval_is_students():
    # mean 3, s = √2.5, t(0.975; 4) = 2.7764: 3 ± 2.7764 · √(2.5 / 5)
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.n) == (3.0, 5)
    assert found.low == pytest.approx(3 - 1.96324, abs=1e-4)
    assert found.high == pytest.approx(3 + 1.96324, abs=1e-4)
    assert found.half_width == pytest.approx(1.96324, abs=1e-4)


def test_two_values_have_a_wide_interval():
    # s = 1/√2 · 2, t(0.975; 1) = 12.7062
    assert interval([0.0, 2.0]).half_width == pytest.approx(12.7062, abs=1e-3)


def test_one_value_has_none():
    found = interval([7.0])
    assert (found.mean, found.low, found.high, found.half_width, found.holds(7.0)) == (7.0, None, None, None, None)


def test_no_value_is_refused():
    with pytest.raises(ValueError, match="no value"):
        interval([])


def test_a_difference_is_paired():
    # Values spread by 10, their differences not at all.
    found = difference([1.0, 11.0, 21.0], [0.5, 10.5, 20.5])
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)
    assert found.holds(0.5)
    assert not found.holds(0.0)


def test_a_ratio_is_paired_and_geometric():
    # 1/2 and 1/8: geometric mean 1/4; logs ln 4 ± 12.7062 · ln 2
    found = ratio([1.0, 1.0], [2.0, 8.0])
    assert found.mean == pytest.approx(0.25)
    assert math.log(found.high) == pytest.approx(math.log(0.25) + 12.7062 * math.log(2), abs=1e-3)
    assert ratio([3.0, 5.0], [6.0, 10.0]).low == pytest.approx(0.5)


@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=2, max_size=6))
def test_a_ratio_turned_around_is_its_inverse(pairs):
    ones, others = zip(*pairs, strict=True)
    there, back = ratio(ones, others), ratio(others, ones)
    assert there.mean * back.mean == pytest.approx(1.0)
    assert math.log(there.low) + math.log(back.high) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("compare", [difference, ratio])
def test_unpaired_values_are_refused(compare):
    with pytest.raises(ValueError, match="zip"):
        compare([1.0, 2.0], [1.0])


def test_a_cost_of_nothing_has_no_ratio():
    with pytest.raises(ValueError, match="math domain"):
        ratio([1.0, 1.0], [0.0, 1.0])


def test_without_scipy_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(UnavailableError, match="pip install"):
        interval([1.0, 2.0])
