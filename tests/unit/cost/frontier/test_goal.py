"""The goal, and when and in how many seeds it is reached."""

import pytest

from marless.core.errors import SpecError
from marless.cost.frontier.contenders import Goal, goal_of
from tests.unit.cost.frontier.synthetic import preset, seed_run, static


def test_the_goal_is_nine_tenths_of_the_way_to_the_best_static_setting():
    best = static(4, seed_run([-30.0, -19.0], random=-39.0), seed_run([-30.0, -21.0], random=-41.0))
    other = static(1, seed_run([-25.0]), seed_run([-15.5]))  # -20.25 in the mean
    better = preset("marless", seed_run([-1.0]), seed_run([-1.0]))
    found = goal_of([other, best, better])
    assert (found.value, found.random, found.best_return) == pytest.approx((-22.0, -40.0, -20.0))
    assert found.best == "4 shared synchronous"
    assert "nine tenths of the way from the random policy's (-40) to the best" in found.rule


def test_a_setting_with_a_failed_run_makes_no_goal():
    best = static(4, seed_run([-10.0]), failed=("gone",))
    assert goal_of([best, static(1, seed_run([-20.0]))]).best == "1 shared synchronous"
    with pytest.raises(SpecError, match="no static setting has finished with every seed"):
        goal_of([best])
    with pytest.raises(SpecError, match="no static setting has finished"):
        goal_of([static(1, seed_run([-20.0, None]))])


def test_there_is_no_goal_where_nothing_was_learned():
    with pytest.raises(SpecError, match=r"above the random policy \(-40; the best, 1 shared synchronous: -41\)"):
        goal_of([static(1, seed_run([-41.0]))])


def test_a_run_arrives_when_it_is_there_for_the_first_time():
    run = seed_run([None, -30.0, -22.0, -25.0, -20.0])
    assert (run.arrival(-22.0), run.arrival(-21.9), run.arrival(-10.0)) == (2, 4, None)


def test_a_contender_arrives_only_with_every_seed():
    both = static(4, seed_run([-20.0]), seed_run([-30.0, -20.0], seed=1))
    assert (both.arrivals(-20.0), both.reached(-20.0)) == ([0, 1], 2)
    one = static(4, seed_run([-20.0]), seed_run([-30.0, -30.0], seed=1))
    assert (one.arrivals(-20.0), one.reached(-20.0)) == (None, 1)
    failed = static(4, seed_run([-20.0]), failed=("gone",))
    assert (failed.arrivals(-20.0), failed.reached(-20.0)) == (None, 1)


def test_a_given_goal_says_so():
    assert Goal(value=-3.5).rule == "Goal: a return of -3.5, as given with --to."
