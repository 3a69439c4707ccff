"""Scaling by gradient noise against numbers worked out by hand."""

import math

import pytest

from marless.jobs.scaling.gns import SCALING, GnsConfig, deviations, smooth
from tests.unit.jobs.scaling.rounds import actors, context, groups, measured


def make(*policies: str, most: int = 48, samples: str = "pooled", **settings):
    return SCALING.make(GnsConfig(**settings), context(*policies, most=most, samples=samples))


def noise(values, **fields):
    return measured("noise_scale", values, **fields)


def test_the_newest_value_weighs_most():
    assert smooth({3: 100.0, 4: 200.0, 6: 100.0}, 0.9) == pytest.approx([100, 190, 109])


def test_by_default_nine_tenths_of_the_noise_are_the_newest():
    # 0.9 · 200 + 0.1 · 100
    decision = make("a").decide(noise({"a": [100, 200]}), groups("a"))
    assert decision.inputs["smoothed"] == {"a": pytest.approx(190)}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([100, 110, 90, 100, 300], 200 / math.sqrt(50)),  # 300 is an outlier: 100 110 90 100 are compared with
        ([100, 110, 90, 100, 95], (95 - 295 / 3) / math.sqrt(50 / 9)),  # 110 and 90 are: half of all lie within 5
        ([100, 100, 100, 130], 22.5 / math.sqrt(168.75)),  # no median deviation: nothing is an outlier
        ([100, 100], 0.0),
        ([0.7, 0.7, 0.7], 0.0),  # whose mean, in floating point, is another number
        ([7], 0.0),
    ],
)
def test_deviations_above_the_usual(values, expected):
    assert deviations(values) == pytest.approx(expected)


def test_a_policy_is_boosted_while_its_noise_is_high_for_it():
    history = noise({"a": [100, 110, 90, 100, 300, 100]})
    assert actors(make("a", smoothing=1), history, groups("a")) == [6, 6, 48, 6, 6, 48, 6]


def test_policies_average_what_they_ask_for():
    history = noise({"a": [100, 100, 130], "b": [100, 100, 90]})
    decision = make("a", "b", smoothing=1).decide(history, groups("a", "b"))
    assert (decision.actors, decision.inputs["actors"]) == (27, {"a": 48, "b": 6})
    assert decision.reason == ("a noise scale of 110 samples over 2 policies, rule threshold: 27 of 48 actors")


def test_in_proportion_to_its_growth_and_never_down():
    policy = make("a", "b", smoothing=1, rule="proportional")
    grown = noise({"a": [100, 150], "b": [100, 50]}, actors=10)  # 15 and 10
    assert policy.decide(grown, groups("a", "b")).actors == 13
    assert policy.decide(noise({"a": [100, 50], "b": [10, 9]}, actors=10), groups("a", "b")).actors == 10
    assert policy.decide(noise({"a": [1, 90], "b": [1, 90]}, actors=10), groups("a", "b")).actors == 48
    assert policy.decide(noise({"a": [0, 90], "b": [-1, -90]}, actors=10), groups("a", "b")).actors == 10


def test_as_many_samples_as_the_noise_scale():
    # 10 actors bring 1000 env steps: 100 samples an actor and agent
    history = noise({"a+b": [900, 1800]}, actors=10)
    assert make("a+b", smoothing=1, rule="samples").decide(history, groups("a+b")).actors == 9
    assert make("a+b", smoothing=1, rule="samples", samples="drawn").decide(history, groups("a+b")).actors == 18
    assert make("a", smoothing=1, rule="samples").decide(noise({"a": [700]}, actors=10), groups("a")).actors == 7


@pytest.mark.parametrize("rule", ["threshold", "proportional", "samples"])
@pytest.mark.parametrize("values", [[], [None], [1e6, None], [1e6, math.nan], [1e6, 1e300], [-5.0, -5.0]])
def test_noise_that_is_not_known_asks_for_the_fewest(rule, values):
    decision = make("a", rule=rule).decide(noise({"a": values}, actors=1), groups("a"))
    assert decision.actors == 6
