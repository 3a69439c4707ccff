"""MARLess's actor scaling against numbers worked out by hand, and when a single policy can force the maximum."""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.jobs.scaling.base import ActorRange
from marless.jobs.scaling.marless import SCALING, MarlessScalingConfig, lone_average, outlier_safe, score
from tests.unit.jobs.scaling.rounds import actors, context, groups, measured

THREE = ("a", "b", "c")


def make(*policies: str, most: int = 50, agents: int = 0, **settings):
    return SCALING.make(MarlessScalingConfig(**settings), context(*policies, most=most, agents=agents))


def test_the_lowest_ratio_of_a_window_asks_for_most():
    # S = (5 - C) / (5 - 1)
    assert [score({0: 5.0, 1: 1.0, 2: value}, 2) for value in (5.0, 4.0, 2.0, 1.0)] == [0.0, 0.25, 0.75, 1.0]


def test_one_policy_round_by_round():
    # W = 3: [4], [4 2], [4 2 3], [2 3 5], [3 5 4.5] give S = none, 1, 1/2, 0, 1/4; I_thr = 0.5 (50 - 10) = 20.
    history = measured("curvature", {"a": [4, 2, 3, 5, 4.5]})
    assert actors(make("a", window=3, min_actors=10), history, groups("a")) == [50, 50, 50, 25, 10, 13]


def test_three_policies_and_both_forms_of_the_threshold():
    # Figure 6 of the paper: 50, 10 and 10 actors are 23.3 on average; β(I_max - I_min) = 20, β I_max = 25.
    history = measured("curvature", {"a": [4, 2, 1], "b": [1, 3, 5], "c": [1, 2, 6]})
    printed = make(*THREE, min_actors=10).decide(history, groups(*THREE))
    figure = make(*THREE, min_actors=10, threshold="figure").decide(history, groups(*THREE))
    assert (printed.actors, figure.actors) == (50, 24)
    assert printed.inputs == {
        "window": {"a": [4, 2, 1], "b": [1, 3, 5], "c": [1, 2, 6]},
        "score": {"a": 1.0, "b": 0.0, "c": 0.0},
        "actors": {"a": 50.0, "b": 10.0, "c": 10.0},
        "average": pytest.approx(70 / 3),
        "threshold": 20.0,
        "min": 10.0,
        "max": 50,
    }
    assert printed.reason == (
        "3 policies ask for 23.3 actors on average, at least the threshold 20.0: as many as a asks for, 50"
    )
    assert figure.reason == (
        "3 policies ask for 23.3 actors on average, below the threshold 25.0: the average, rounded up to 24"
    )


def test_logarithms_keep_one_huge_ratio_from_dwarfing_the_rest():
    history = measured("curvature", {"a": [1000, 1, 10]})  # (1000 - 10) / 999 = 0.991; (3 - 1) / 3
    decided = [make("a", min_actors=1, compare=each).decide(history, groups("a")) for each in ("ratio", "logarithm")]
    assert [each.inputs["score"]["a"] for each in decided] == pytest.approx([0.990991, 2 / 3], abs=1e-6)
    assert [each.actors for each in decided] == [50, 34]
    odd = measured("curvature", {"a": [4, 2, 0.0], "b": [4, -1.0, 2]})  # 0 and -1 have no logarithm
    found = make("a", "b", min_actors=1, compare="logarithm").decide(odd, groups("a", "b")).inputs["score"]
    assert found == {"a": None, "b": 1.0}


def test_a_policy_that_learns_from_several_agents_asks_for_the_part_of_one():
    # S = 3/4 and 1/2 of 48: 36 and 24; "a" has three members: 12; its window is that of the new groups alone.
    history = measured("curvature", {"a+b+c": [5, 1, 2], "d": [5, 1, 3]})
    now = groups("a+b+c", "d")
    found = make("a+b+c", "d", most=48, agents=4, min_actors=1, beta=1.0, count="samples").decide(history, now)
    assert found.inputs["actors"] == {"a": 12.0, "d": 24.0}
    assert found.actors == 18
    whole = make("a+b+c", "d", most=48, agents=4, min_actors=1, beta=1.0).decide(history, now)
    assert whole.inputs["actors"] == {"a": 36.0, "d": 24.0}
    unknown = make("a+b+c", "d", most=48, agents=4, min_actors=1, beta=1.0, count="samples").decide(history[:1], now)
    assert unknown.inputs["actors"] == {"a": 16.0, "d": 48.0}, "I_max is what one agent's policy may ask for"
    assert unknown.reason.endswith("32 actors, the most that policies of several agents ask for")


def test_the_maximum_is_that_of_the_neediest_policy_not_of_the_job():
    # S = 3/4 and 1/2: 37.5 and 25, 31.25 on average.
    history = measured("curvature", {"a": [5, 1, 2], "b": [5, 1, 3]})
    assert make("a", "b", min_actors=10).decide(history, groups("a", "b")).actors == 38


def test_the_fewest_are_an_nth_of_the_most_and_the_threshold_takes_the_fraction():
    six = tuple("abcdef")
    policy = make(*six)
    assert policy.threshold == pytest.approx(0.5 * (50 - 50 / 6))  # 20.8
    history = measured("curvature", {each: [1, 2] for each in six})
    assert policy.decide(history, groups(*six)).actors == 9  # 8.33, rounded up


@pytest.mark.parametrize(
    "values",
    [[], [2.0], [2.0, 2.0], [None, 2.0], [1.0, None], [1.0, math.nan], [1.0, math.inf], [1.0, 1e300], [-1e300, 2.0]],
)
def test_a_policy_that_cannot_be_compared_gets_the_most(values):
    decision = make("a", min_actors=10).decide(measured("curvature", {"a": values}), groups("a"))
    assert decision.actors == 50
    assert decision.reason in (
        "first round: 50 actors, the most allowed",
        "no policy's curvature can be compared yet: 50 actors, the most allowed",
    )


def test_a_policy_that_cannot_be_compared_is_counted():
    history = measured("curvature", {"a": [1, 2], "b": [1, None], "c": [1, 2], "d": [1, 2], "e": [1, 2]})
    decision = make(*"abcde", min_actors=10).decide(history, groups(*"abcde"))  # (4 · 10 + 50) / 5 = 18 < 20
    assert decision.reason == (
        "5 policies ask for 18.0 actors on average (1 of them, not known well enough, for 50), below the threshold "
        "20.0: the average, rounded up to 18"
    )


def test_windows_begin_anew_when_the_groups_change():
    apart = measured("curvature", {"a": [1, 5], "b": [1, 5]})
    together = measured("curvature", {"a+b": [9, 3, 4]}, first=2)
    policy = make("a", "b", min_actors=10)
    assert policy.decide(apart, groups("a+b")).actors == 50
    assert policy.decide([*apart, *together[:1]], groups("a+b")).actors == 50
    decision = policy.decide([*apart, *together], groups("a+b"))  # (9 - 4) / (9 - 3) · 50
    assert (decision.actors, decision.inputs["window"]) == (42, {"a": [9, 3, 4]})
    split = [*apart, *together, *measured("curvature", {"a": [7.0], "b": [7.0]}, first=5)]
    assert policy.decide(split, groups("a", "b")).inputs["window"] == {"a": [7], "b": [7]}


def test_more_than_the_job_gets_is_refused():
    with pytest.raises(SpecError, match=r"min_actors is 51, more than actors\.count, 50, which is the most"):
        make("a", min_actors=51)


def test_the_paper_s_defaults_are_safe_with_six_and_four_policies_but_not_with_three_or_two():
    bounds = ActorRange(50 / 6, 50)
    limit = MarlessScalingConfig().limit(bounds)
    assert limit == pytest.approx(20.83, abs=0.01)
    averages = {policies: lone_average(bounds, policies) for policies in (6, 4, 3, 2)}
    assert averages == pytest.approx({6: 15.28, 4: 18.75, 3: 22.22, 2: 29.17}, abs=0.01)
    assert [outlier_safe(bounds, policies, limit) for policies in averages] == [True, True, False, False]


@given(
    most=st.integers(1, 200),
    low=st.integers(1, 200),
    policies=st.integers(2, 30),
    beta=st.floats(0, 1),
    form=st.sampled_from(["printed", "figure"]),
)
def test_one_policy_forces_the_maximum_exactly_where_the_condition_fails(most, low, policies, beta, form):
    assume(low <= most)
    names = [f"p{number}" for number in range(policies)]
    config = MarlessScalingConfig(min_actors=low, beta=beta, threshold=form)
    ratios = {name: [2.0, 1.0] if number == 0 else [1.0, 2.0] for number, name in enumerate(names)}
    found = SCALING.make(config, context(*names, most=most)).decide(measured("curvature", ratios), groups(*names))
    bounds = ActorRange(float(low), most)
    average = low + (most - low) / policies
    assert found.inputs["average"] == pytest.approx(average)
    safe = outlier_safe(bounds, policies, config.limit(bounds))
    assert found.actors == (math.ceil(average - 1e-9) if safe else most)


@given(
    ratios=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12),
    factor=st.sampled_from([0.5, 2.0, 1024.0]),
    window=st.integers(2, 12),
)
def test_only_the_order_and_spacing_of_ratios_count(ratios, factor, window):
    policy = make("a", window=window, min_actors=5)
    scaled = [factor * ratio for ratio in ratios]
    assume(all(abs(ratio) > 1e-200 or ratio == 0 for ratio in ratios))
    decide = [policy.decide(measured("curvature", {"a": each}), groups("a")).actors for each in (ratios, scaled)]
    assert decide[0] == decide[1]
    seen = ratios[-window:]
    if min(seen) < max(seen):
        extreme = [[*ratios[:-1], bound] for bound in (min(seen) - 1, max(seen) + 1)]
        found = [policy.decide(measured("curvature", {"a": each}), groups("a")).actors for each in extreme]
        assert found == [50, 5]


def test_what_noise_alone_makes_of_it_is_as_the_page_says():
    chance, six = random.Random(1), tuple("abcdef")
    history = measured("curvature", {each: [chance.lognormvariate(0, 0.3) for _ in range(300)] for each in six})
    mean = []
    for settings in (
        {},
        {"threshold": "figure"},
        {"threshold": "figure", "compare": "logarithm"},
        {"threshold": "figure", "compare": "logarithm", "beta": 0.7},
    ):
        policy = make(*six, **settings)
        decided = [policy.decide(history[end - 10 : end], groups(*six)).actors for end in range(10, 300)]
        mean.append(sum(decided) / len(decided))
    assert mean == pytest.approx([45, 42, 37, 27], abs=1)
