"""Actors on the way to a goal, against numbers worked out by hand."""

import pytest

from marless.core.errors import SpecError
from marless.jobs.scaling.adapt import SCALING, AdaptConfig
from tests.unit.jobs.scaling.rounds import actors, context, groups, record

A = groups("a")


def make(most: int = 50, **settings):
    return SCALING.make(AdaptConfig(**settings), context("a", most=most))


def rounds(*means: float | None, decided=None):
    return [record(number, "a", mean=mean, decided=decided) for number, mean in enumerate(means)]


def test_the_printed_formula_where_returns_are_positive():
    # means 60, 80, 100, 120, 140, 200 of a goal of 600, times 50
    history = rounds(60, 100, 140, 180, 220, 360)
    assert actors(make(goal=600), history, A) == [1, 5, 7, 9, 10, 12, 17]


def test_negative_returns_count_from_a_baseline():
    # (Ĵ + 40) / 20 · 50: Ĵ = -40, -35, -30
    assert actors(make(goal=-20, baseline=-40), rounds(-40, -30, -20), A) == [1, 1, 13, 25]


def test_nearer_is_more_whatever_the_sign():
    for goal, baseline in ((-20, -40), (30, 10), (10, -10)):
        found = [make(goal=goal, baseline=baseline).decide(rounds(baseline + way), A).actors for way in (-5, 5, 15, 25)]
        assert found == [1, 13, 38, 50]


def test_the_first_return_is_the_baseline_of_a_negative_goal_and_is_remembered():
    policy = make(goal=-20, window=1)
    first = policy.decide(rounds(-40, -30), A)
    assert (first.actors, first.inputs["baseline"], first.inputs["progress"]) == (25, -40, 0.5)
    later = [record(700, "a", mean=-30.0), record(701, "a", mean=-25.0, decided=("adapt", first))]
    assert policy.decide(later, A).actors == 38  # 0.75 of the way from -40, not half of that from -30


def test_rounds_in_which_no_episode_ended_are_left_out():
    decision = make(goal=-20, baseline=-40, window=2).decide(rounds(-40, -30, None, -28, None), A)
    assert decision.inputs["returns"] == [-30, -28]
    assert decision.reason == (
        "the mean of the last 2 returns, -29, has come 55% of the way from -40 to the goal, -20: 28 of 50 actors"
    )
    assert make(goal=-20).decide(rounds(None, None), A).reason == "no returns yet: 1 actors, the fewest"


def test_a_job_that_starts_beyond_its_goal_gets_the_most():
    decision = make(goal=-50).decide(rounds(-40), A)
    assert (decision.actors, decision.reason) == (
        50,
        "the mean of the last 1 returns, -40, started beyond the goal, -50: 50 actors, the most allowed",
    )


def test_a_goal_that_is_not_above_the_baseline_is_refused():
    with pytest.raises(SpecError, match=r"goal is -40.0, not above scaling.baseline, -40.0"):
        make(goal=-40, baseline=-40)
