"""Performance profiles against counts."""

import pytest

from marless.cost.comparison import table
from marless.cost.comparison.statistics import profile
from marless.cost.comparison.table import profiles
from tests.unit.cost.comparison.test_table import run, two, ways


def test_a_profile_counts_the_runs_that_reach_each_threshold():
    found = profile([2.0, 4.0, 1.0, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.fraction == (1.0, 0.75, 0.25, 0.25, 0.0)
    # Of four draws with 1/4 each, at most 3 are such with a chance of 0.996, at most 2 with 0.949.
    assert (found.low[2], found.high[2]) == (0.0, 0.75)
    assert (found.low[0], found.high[0], found.low[4], found.high[4]) == (1.0, 1.0, 0.0, 0.0)


def test_one_run_has_a_profile_without_a_band():
    found = profile([2.0], [1.0, 3.0])
    assert (found.fraction, found.low, found.high) == ((1.0, 0.0), (), ())
    with pytest.raises(ValueError, match="no value"):
        profile([], [1.0])


def test_variants_have_profiles_at_the_same_thresholds():
    found = profiles(two([-20.0, -22.0], [-21.0, -22.0]))
    assert found["vanilla"]["greedy return"].thresholds == (-22.0, -21.0, -20.0)
    assert found["vanilla"]["greedy return"].fraction == (1.0, 0.5, 0.5)
    assert found["marless"]["greedy return"].fraction == (1.0, 0.5, 0.0)


def test_where_sides_compete_each_has_its_profile():
    runs = [run(name, 0, greedy=-9.0, sides={"prey": gain}) for name, gain in (("vanilla", 1.0), ("marless", 2.0))]
    found = profiles(table.compared("tiny", 64, ways("vanilla,marless"), runs))
    assert [list(each) for each in found.values()] == [["prey against chance"]] * 2
    assert found["vanilla"]["prey against chance"].fraction == (1.0, 0.0)
