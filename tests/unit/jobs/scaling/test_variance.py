"""Scaling by the spread of durations, against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.jobs.scaling.variance import VarianceConfig, VarianceKind, largest_of
from tests.unit.jobs.scaling.rounds import context, groups, record
from tests.unit.jobs.scaling.timed import timed

ONE = groups("a")
UNEQUAL = [timed(0, [0.9, 1.1] * 25, learning_s=0.4)]


def policy(most=50, **settings):
    return VarianceKind().make(VarianceConfig(**settings), context("a", most=most))


def test_the_expected_largest_of_some_normal_deviates():
    # 1/√π and 1.5/√π, exactly; 1.5388 of ten and 2.2491 of fifty, from tables (Blom is off by up to 0.02)
    exact = {1: 0.0, 2: 0.5642, 3: 0.8463, 10: 1.5388, 50: 2.2491}
    for count, value in exact.items():
        assert largest_of(count) == pytest.approx(value, abs=0.03)


def test_equal_durations_ask_for_all_actors():
    found = policy().decide([timed(0, [0.5] * 10, learning_s=0.4)], ONE)
    assert (found.actors, found.inputs["variation"]) == (50, 0.0)


def test_the_number_with_the_smallest_sum_of_time_and_cost():
    # of 50 durations 0.9 and 1.1: mean 1, variance 0.01 · 50/49, so c = 0.1010; J = (1 + c e_n)(1 + 1/n)/2
    found = policy().decide(UNEQUAL, ONE)
    variation = math.sqrt(0.01 * 50 / 49)
    assert found.inputs["variation"] == pytest.approx(variation)
    costs = {n: (1 + variation * largest_of(n)) * (1 + 1 / n) for n in range(1, 51)}
    assert found.actors == min(costs, key=costs.__getitem__) == 28
    assert found.reason == (
        "durations of actors differ by 10.1%, so the slowest of 28 takes 1.20 times the mean: 28 of 50 actors"
    )


def test_the_weight_of_time_decides_between_one_and_all():
    assert policy(time_weight=1.0).decide(UNEQUAL, ONE).actors == 50
    assert policy(time_weight=0.0).decide(UNEQUAL, ONE).actors == 1
    assert policy(time_weight=0.0, min_actors=4).decide(UNEQUAL, ONE).actors == 4


@given(st.lists(st.floats(0.0, 0.99), min_size=2, max_size=12), st.floats(1.0, 3.0))
def test_a_larger_spread_never_asks_for_more(offsets, factor):
    def asked(scale):
        durations = [1.0 + scale * each for each in offsets] + [1.0 - scale * each for each in offsets]
        return policy(cut=1e6).decide([timed(0, durations)], ONE).actors

    assert asked(0.3 * factor) <= asked(0.3)


def test_a_duration_beyond_the_cut_counts_as_the_cut():
    straggling = [timed(0, [1.0] * 9 + [50.0])]
    at_cut = [timed(0, [1.0] * 9 + [2.0])]
    assert policy().decide(straggling, ONE).inputs == policy().decide(at_cut, ONE).inputs
    assert policy(cut=60.0).decide(straggling, ONE).actors < policy().decide(straggling, ONE).actors


def test_newer_rounds_weigh_more_by_the_window():
    # W = 3: a round keeps 1 - 2/4 of its weight; newest first 1 and 1/2: (0 + 0.02/2) / 1.5 = 0.02/3
    equal, unequal = timed(1, [1.0, 1.0]), timed(0, [0.9, 1.1])
    found = policy(window=3).decide([unequal, equal], ONE)
    assert found.inputs["variation"] ** 2 == pytest.approx(0.02 / 3)
    assert found.inputs["rounds"] == 2


def test_by_cpu_seconds_waiting_for_a_core_is_no_spread():
    waited = [timed(0, [1.0, 1.5, 2.0, 1.1])]
    waited = [replace(each, invocations=tuple(replace(one, vcpu_s=1.0) for one in each.invocations)) for each in waited]
    by_cpu = VarianceKind().make(VarianceConfig(), context("a", by_cpu=True))
    assert (by_cpu.decide(waited, ONE).actors, policy().decide(waited, ONE).actors < 10) == (50, True)


def test_rounds_of_one_actor_keep_what_was_known():
    sparing = policy(time_weight=0.0, window=2)
    found = sparing.decide(UNEQUAL, ONE)
    alone = [timed(number, [1.0]) for number in range(1, 4)]
    noted = replace(alone[-1], decisions=decided("variance", found))
    after = sparing.decide([*UNEQUAL, *alone[:-1], noted], ONE)
    assert (after.actors, after.inputs["variation"]) == (1, found.inputs["variation"])
    assert sparing.decide([*UNEQUAL, *alone], ONE).actors == 50  # another rule decided


def decided(rule, decision):
    return record(0, "a", decided=(rule, decision)).decisions


def test_all_actors_until_two_are_timed():
    assert policy().decide([], ONE).reason == "first round: 50 actors, the most allowed"
    for history in ([record(0, "a")], [timed(0, [1.0])]):
        found = policy().decide(history, ONE)
        assert found.reason == "no round has two timed actors yet: 50 actors, the most allowed"
