"""ECHO-2's capacity rule, against numbers worked out by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.jobs.scaling.echo import EchoConfig, EchoKind
from marless.jobs.scaling.round_times import times_of
from tests.unit.jobs.scaling.rounds import context, groups, record
from tests.unit.jobs.scaling.timed import timed

ONE = groups("a")


def policy(most=50, **settings):
    job = {name: settings.pop(name) for name in ("drawn", "learned_at_once", "by_cpu") if name in settings}
    return EchoKind().make(EchoConfig(**settings), context("a", most=most, **job))


def test_as_many_actors_as_make_the_update_as_long_as_a_rollout():
    # 0.5 s a rollout; an update takes 0.1 s and, of ten actors, 0.4 s: 0.04 s an actor; (0.5 - 0.1) / 0.04 = 10
    found = policy().decide([timed(0, [0.5] * 10, fixed_s=0.1, learning_s=0.4)], ONE)
    assert found.actors == 10
    assert found.reason == (
        "a rollout takes 500 ms, an update 100 ms and 40 ms an actor: 10 actors, the fewest that keep learners busy"
    )
    # the same times with five actors: 0.08 s an actor
    assert policy().decide([timed(0, [0.5] * 5, fixed_s=0.1, learning_s=0.4)], ONE).actors == 5
    # a little more than fits: rounded up
    assert policy().decide([timed(0, [0.51] * 10, fixed_s=0.1, learning_s=0.4)], ONE).actors == 11


def test_the_delivery_is_spread_over_the_updates_that_staleness_allows():
    history = [timed(0, [0.5] * 10, delivery_s=0.2, fixed_s=0.1, learning_s=0.4)]
    assert policy().decide(history, ONE).actors == 15  # (0.5 + 0.2 - 0.1) / 0.04
    assert policy(staleness=4).decide(history, ONE).actors == 12  # (0.5 + 0.05 - 0.1) / 0.04 = 11.25


def test_an_update_that_is_longer_than_a_rollout_anyway_needs_the_fewest():
    found = policy(min_actors=3).decide([timed(0, [0.5] * 10, fixed_s=0.6, learning_s=0.4)], ONE)
    assert (found.actors, found.reason[-23:]) == (3, "actors, the fewest allowed"[-23:])


def test_what_no_number_can_do_is_said():
    found = policy(20).decide([timed(0, [0.5] * 10, fixed_s=0.1, learning_s=0.04)], ONE)
    assert (found.actors, "even 20 actors, the most allowed, do not keep learners busy" in found.reason) == (20, True)


def test_updates_from_a_replay_do_not_grow():
    found = policy(drawn=True).decide([timed(0, [0.5] * 10, fixed_s=0.1, learning_s=0.4)], ONE)
    assert (found.actors, "updates do not grow with actors" in found.reason) == (1, True)


def test_learners_that_take_a_fixed_number_of_rollouts_are_given_as_many():
    # eight learners of two rollouts take 16 in 0.5 s; rollouts take 0.6 s and, over S updates, 0.2 s of delivery
    history = [timed(0, [0.6] * 3, delivery_s=0.2, fixed_s=0.1, learning_s=0.4)]
    found = policy(learned_at_once=16).decide(history, ONE)
    assert found.actors == 26  # 16 · 0.8 / 0.5 = 25.6
    assert found.reason == (
        "a rollout takes 800 ms, and learners take 16 in 500 ms: 26 actors, the fewest that keep learners busy"
    )
    assert policy(learned_at_once=16, staleness=4).decide(history, ONE).actors == 21  # 16 · 0.65 / 0.5 = 20.8
    few = policy(20, learned_at_once=16).decide(history, ONE)
    assert (few.actors, few.reason[-16:]) == (20, "the most allowed")


def test_by_cpu_seconds_what_waited_for_a_core_does_not_count():
    # on a machine that is busy with other things, all takes twice as long, and computes as long as before
    alone = timed(0, [0.5] * 10, fixed_s=0.1, learning_s=0.4)
    busy = timed(0, [1.0] * 10, fixed_s=0.2, learning_s=0.8)
    busy = replace(busy, invocations=tuple(replace(each, vcpu_s=each.vcpu_s / 2) for each in busy.invocations))
    calm, found = policy(by_cpu=True).decide([alone], ONE), policy(by_cpu=True).decide([busy], ONE)
    assert found.inputs == pytest.approx(calm.inputs)
    assert (found.inputs["acting_s"], found.inputs["update_actor_s"]) == pytest.approx((0.5, 0.04))
    unknown = replace(busy, invocations=tuple(replace(each, vcpu_s=0.0) for each in busy.invocations))
    assert policy(by_cpu=True).decide([unknown], ONE).inputs["acting_s"] == 1.0
    several = replace(busy, invocations=tuple(replace(each, vcpu_s=9.0) for each in busy.invocations))
    assert policy(by_cpu=True).decide([several], ONE).inputs["acting_s"] == 1.0


def test_all_actors_until_a_round_is_timed():
    assert policy().decide([], ONE).reason == "first round: 50 actors, the most allowed"
    assert policy().decide([record(0, "a")], ONE).reason == "no round has been timed yet: 50 actors, the most allowed"


def test_starts_of_workers_and_waiting_for_a_slot_are_no_work():
    warm = [timed(0, [0.5] * 10, fixed_s=0.1, learning_s=0.4)]
    cold = [timed(0, [0.5] * 10, fixed_s=0.1, learning_s=0.4, cold_s=3.0, slots=2)]
    assert policy().decide(cold, ONE).actors == policy().decide(warm, ONE).actors == 10
    assert times_of(cold[0]).at_once == 2


@given(st.lists(st.floats(0.01, 100.0), min_size=4, max_size=4), st.permutations(range(9)))
def test_four_odd_rounds_of_nine_move_nothing_beyond_the_others(odd, order):
    """A median of nine values lies among the five that are alike, whatever the other four are."""
    alike = [([0.5] * 10, 0.1, 0.4)] * 5
    rounds = alike + [([each] * 10, each, each) for each in odd]
    history = [
        timed(number, acting, fixed_s=fixed, learning_s=learning)
        for number, (acting, fixed, learning) in enumerate(rounds[at] for at in order)
    ]
    assert policy().decide(history, ONE).actors == 10


def test_only_the_window_counts():
    old = [timed(number, [5.0] * 10, fixed_s=0.1, learning_s=0.4) for number in range(9)]
    new = [timed(number, [0.5] * 10, fixed_s=0.1, learning_s=0.4) for number in range(9, 18)]
    assert policy().decide(old, ONE).actors == 50
    assert policy().decide(old + new, ONE).actors == 10


@pytest.mark.parametrize("start", [1, 10, 50])
def test_decisions_reach_the_number_that_fits_from_anywhere_and_stay(start):
    actors, history = start, []
    for number in range(12):
        history.append(timed(number, [0.5] * actors, fixed_s=0.1, learning_s=0.04 * actors))
        actors = policy().decide(history, ONE).actors
        assert actors == 10
