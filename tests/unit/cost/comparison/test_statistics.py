"""Intervals and ratios against numbers from a t table and a pocket calculator."""

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import UnavailableError
from marless.cost.comparison.statistics import (
    difference,
    equivalence,
    improvement,
    interquartile_mean,
    interval,
    mean_interval,
    median_interval,
    middle,
    ratio,
)


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


def test_an_interquartile_mean_leaves_a_quarter_out_at_either_end():
    assert interquartile_mean([[100.0, 1.0, 3.0, -50.0]]).mean == 2.0
    assert interquartile_mean([[9.0, 1.0, 2.0, 3.0, -9.0]]).mean == 2.0  # five: one at either end
    assert interquartile_mean([[1.0, 2.0, 6.0]]).mean == 3.0  # three: nobody
    # Eight of two tasks are one sample: 0 1 | 2 3 4 5 | 6 7
    assert interquartile_mean([[7.0, 0.0, 6.0, 1.0], [2.0, 5.0, 4.0, 3.0]]).mean == 3.5


@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=6), min_size=1, max_size=3))
def test_an_interquartile_mean_is_scipys_trimmed_mean_within_its_interval(tasks):
    from scipy.stats import trim_mean

    found = interquartile_mean(tasks)
    assert found.mean == pytest.approx(trim_mean(np.concatenate(tasks), 0.25), abs=1e-9)
    if found.low is not None:
        assert min(map(min, tasks)) - 1e-9 <= found.low <= found.high <= max(map(max, tasks)) + 1e-9
        assert found == interquartile_mean(tasks)


def test_a_bootstrap_interval_of_two_seeds():
    # Resamples of (0, 1): means 0, 1/2, 1 with chances 1/4, 1/2, 1/4. Each end holds more than 2.5 %.
    found = interquartile_mean([[0.0, 1.0]])
    assert (found.mean, found.low, found.high, found.n) == (0.5, 0.0, 1.0, 2)


def test_a_bootstrap_draws_seeds_within_each_task():
    # Tasks at 0 and 100 always give two values each: (0, 0, 100, 100), whose middle half is (0, 100).
    found = interquartile_mean([[0.0, 0.0], [100.0, 100.0]])
    assert (found.mean, found.low, found.high) == (50.0, 50.0, 50.0)


def test_a_bootstrap_interval_is_that_of_all_resamples():
    # All 4^4 resamples of four seeds; their middle two.
    values = [0.0, 1.0, 4.0, 9.0]
    resampled = np.sort(np.stack(np.meshgrid(*[values] * 4), axis=-1).reshape(-1, 4), axis=-1)[:, 1:3].mean(axis=-1)
    found = interquartile_mean([values])
    assert found.low == pytest.approx(np.quantile(resampled, 0.025), abs=0.3)
    assert found.high == pytest.approx(np.quantile(resampled, 0.975), abs=0.3)


def test_one_seed_has_no_bootstrap_interval_and_equal_seeds_one_of_no_width():
    assert interquartile_mean([[7.0]]).low is interquartile_mean([[7.0], [9.0]]).low is None
    equal = interquartile_mean([[0.1, 0.1, 0.1]])
    assert equal.low == equal.high == equal.mean == pytest.approx(0.1)


@pytest.mark.parametrize("tasks", [[], [[]], [[1.0], []]])
def test_a_task_without_values_has_no_interquartile_mean(tasks):
    with pytest.raises(ValueError, match="no value"):
        interquartile_mean(tasks)


def test_the_middle_half_of_values_is_that_of_the_interquartile_mean():
    assert middle([100.0, 1.0, 3.0, -50.0]) == 2.0
    with pytest.raises(ValueError, match="no value"):
        middle([])


def test_a_median_has_the_interval_of_its_resamples():
    # Medians of three draws of (0, 1, 9): each end has a chance of 7/27.
    found = median_interval([9.0, 0.0, 1.0])
    assert (found.mean, found.low, found.high) == (1.0, 0.0, 9.0)


def test_a_fraction_of_runs_has_a_binomial_interval():
    # Four draws with 1/4 each: none with a chance of 0.32; at most 2 with 0.949, at most 3 with 0.996.
    found = mean_interval([0.0, 1.0, 0.0, 0.0])
    assert (found.mean, found.low, found.high) == (0.25, 0.0, 0.75)


def test_a_probability_of_improvement_counts_pairs():
    # 2 > 1, 2 = 2, 3 > 1, 3 > 2: (1 + 1/2 + 1 + 1) / 4. In one of 16 resamples, (2, 2) meets (2, 2): 1/2.
    found = improvement([3.0, 2.0], [1.0, 2.0])
    assert (found.mean, found.low, found.high, found.n) == (0.875, 0.5, 1.0, 2)
    assert improvement([1.0, 2.0], [3.0, 2.0]).mean == 0.125
    assert improvement([5.0], [4.0]).low is None
    with pytest.raises(ValueError, match="no value"):
        improvement([], [1.0])


@given(*[st.lists(st.floats(-100, 100), min_size=2, max_size=5)] * 2)
def test_a_probability_of_improvement_and_its_opposite_are_one(values, reference):
    there, back = improvement(values, reference), improvement(reference, values)
    assert there.mean + back.mean == pytest.approx(1.0)
    assert 0.0 <= there.low <= there.high <= 1.0


def two_degrees(t: float) -> float:
    """P(T > t) of Student's distribution with two degrees of freedom, in closed form."""
    return (1 - t / math.sqrt(t * t + 2)) / 2


def test_equality_takes_two_one_sided_tests():
    # Differences 0, 1, 2: mean 1, s = 1, standard error 1/√3. Margin 3: t = (1 + 3)√3 and (3 − 1)√3.
    found = equivalence([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], 3.0)
    assert found.p_worse == pytest.approx(two_degrees(4 * math.sqrt(3)))
    assert found.p_better == pytest.approx(two_degrees(2 * math.sqrt(3)))  # 0.0371
    assert (found.p, found.verdict) == (found.p_better, "equal")
    # Margin 2.5: t = 1.5 √3, p = 0.0609
    assert equivalence([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], 2.5).verdict == "not shown equal"
    # What is better by more than the margin fails the other test: 10 ± 2.48
    assert equivalence([10.0, 11.0, 12.0], [1.0, 1.0, 1.0], 2.5).verdict == "better"
    assert equivalence([1.0, 1.0, 1.0], [10.0, 11.0, 12.0], 2.5).verdict == "worse"


def test_a_certain_difference_within_the_margin_is_equal():
    # Differences 0.9, 1, 1.1: 1 ± 0.248 excludes 0. Margin 1.3: t = 0.3 · √3 / 0.1 = 5.196, p = 0.0176.
    found = equivalence([0.9, 1.0, 1.1], [0.0, 0.0, 0.0], 1.3)
    assert (found.difference.holds(0.0), found.verdict) == (False, "equal")
    assert found.p == pytest.approx(two_degrees(3 * math.sqrt(3)))


def test_differences_without_spread_are_equal_within_the_margin_and_not_on_it():
    for other, verdict in ((1.5, "equal"), (1.0, "worse"), (0.5, "worse")):
        assert equivalence([other, other], [2.0, 2.0], 1.0).verdict == verdict
    assert equivalence([3.5, 3.5], [2.0, 2.0], 1.0).verdict == "better"
    assert equivalence([2.0, 2.0], [2.0, 2.0], 0.0).verdict == "not shown equal"


def test_one_pair_shows_no_equality():
    found = equivalence([2.0], [2.0], 1.0)
    assert (found.p_worse, found.p_better, found.p, found.verdict) == (None, None, None, None)
    with pytest.raises(ValueError, match="no value"):
        equivalence([], [], 1.0)


def test_equality_agrees_with_the_90_percent_interval():
    """Both one-sided tests pass exactly if the 90 % interval lies within the margin: t(0.95; 4) = 2.13185."""
    values = [0.3, -0.1, 0.4, 0.2, -0.3]
    mean = sum(values) / 5
    reach = 2.13185 * math.sqrt(sum((each - mean) ** 2 for each in values) / 4 / 5)
    for margin, verdict in ((mean + reach + 1e-4, "equal"), (mean + reach - 1e-4, "not shown equal")):
        assert equivalence(values, [0.0] * 5, margin).verdict == verdict
