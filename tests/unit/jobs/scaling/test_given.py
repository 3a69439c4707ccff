"""Scaling policy `given`."""

import pytest
from pydantic import ValidationError

from marless.core.errors import SpecError
from marless.jobs.scaling.fixed import GIVEN, GivenConfig
from tests.unit.jobs.scaling.rounds import actors, context, groups, measured


def made(*numbers: int, most: int = 50):
    return GIVEN.make(GivenConfig(actors=numbers), context("a", most=most))


def test_each_round_gets_its_number_and_the_last_one_holds():
    rounds = measured("curvature", {"a": [1.0] * 5})
    assert actors(made(7, 3, 12), rounds, groups("a")) == [7, 3, 12, 12, 12, 12]


def test_a_short_history_tells_which_round_it_is():
    late = measured("curvature", {"a": [1.0]}, first=1)
    assert made(7, 3, 12).decide(late, groups("a")).actors == 12


def test_reasons_say_which_number_it_is():
    rounds = measured("curvature", {"a": [1.0] * 3})
    policy = made(7, 3)
    assert policy.decide(rounds[:1], groups("a")).reason == "given: number 2 of a list of 2, 3 actors"
    assert policy.decide(rounds, groups("a")).reason == "given: a list of 2 numbers has ended, its last holds, 3 actors"


def test_numbers_above_the_most_are_refused():
    made(50)
    with pytest.raises(SpecError, match=r"scaling\.actors has 51, more than actors\.count, 50"):
        made(3, 51)


@pytest.mark.parametrize("numbers", [(), (0,), (3, -1), (4097,), (2.5,)])
def test_what_is_no_number_of_actors_is_refused(numbers):
    with pytest.raises(ValidationError):
        GivenConfig(actors=numbers)


def test_the_fewest_and_the_mean_are_known_beforehand():
    config = GivenConfig(actors=(8, 2, 5))
    assert config.least(context("a")) == 2
    assert GivenConfig(actors=(8, 2), within_budget=True).least(context("a")) == 1
    assert config.mean(2) == 5.0
    assert config.mean(6) == pytest.approx((8 + 2 + 5 * 4) / 6)
