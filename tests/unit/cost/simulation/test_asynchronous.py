"""Asynchronous training on a virtual clock, against times computed by hand."""

import pytest

from marless.cost.simulation.asynchronous import SlotCounts, SlotSeconds, SpeedSpread, simulate
from marless.jobs.schedules.base import Learn, Publish, RollOut
from marless.jobs.schedules.stellaris import Stellaris, StellarisConfig


def system(actors, **settings) -> tuple[Stellaris, SlotCounts]:
    config = StellarisConfig.model_validate({"aggregation": "async", **settings})
    return Stellaris(config), SlotCounts(actors, config.learners)


SLOW_ROLLOUTS = SlotSeconds(sample_s=[2.0], learn_s=[1.0], publish_s=0.5)


def test_one_actor_and_one_learner_take_what_the_longer_one_takes():
    """Rollouts end at 2, 4, 6; gradients at 3, 5, 7; versions half a second later."""
    course = simulate(*system(1, learners=1), SLOW_ROLLOUTS, SpeedSpread(), gradients=3, seed=0)
    assert course.published_s == (3.5, 5.5, 7.5)
    assert course.staleness == [0, 0, 0]
    assert course.actors_busy == 1.0
    assert course.learners_busy == pytest.approx(3 / 7.5)
    assert course.longest_queue == 0


def test_a_barrier_makes_everyone_wait_for_the_version():
    """Two rollouts end at 2, their gradients at 3; the next ones begin with the version, at 3.5."""
    given = {"learners": 2, "barrier": True, "aggregation": "sync"}
    course = simulate(*system(2, **given), SLOW_ROLLOUTS, SpeedSpread(), gradients=4, seed=0)
    assert course.published_s == (3.5, 7.0)
    assert [len(each.gradients) for each in course.aggregations] == [2, 2]
    assert course.actors_busy == pytest.approx(8 / 14)


def test_gradients_grow_stale_while_others_become_versions():
    """Two rollouts end at 2: one learner takes them one after the other, and a third comes between."""
    course = simulate(*system(2, learners=2), SLOW_ROLLOUTS, SpeedSpread(), gradients=2, seed=0)
    assert course.staleness == [0, 1]
    assert course.published_s == (3.5, 4.0)  # the parameter function is one


def test_slow_slots_take_twice_as_long():
    course = simulate(*system(1, learners=1), SLOW_ROLLOUTS, SpeedSpread(slow=1.0), gradients=1, seed=0)
    assert course.published_s == (5.5,)


def test_stragglers_hold_up_a_barrier_and_little_else():
    durations, machines = SlotSeconds(sample_s=[1.0], learn_s=[0.1]), SpeedSpread(straggling=0.1, straggler_factor=10.0)
    barrier = system(8, learners=8, barrier=True, aggregation="sync")
    free = system(8, learners=8, data_lag=16, aggregation="softsync")
    held, going = (simulate(*each, durations, machines, gradients=800, seed=1) for each in (barrier, free))
    assert held.ended_s > 2 * going.ended_s
    assert going.actors_busy > 0.95 > 0.5 > held.actors_busy


def test_equal_seeds_give_equal_courses():
    durations, machines = SlotSeconds(sample_s=[1.0, 2.0], learn_s=[0.5, 0.7]), SpeedSpread(slow=0.5, straggling=0.2)
    first, again, other = (
        simulate(*system(4, learners=2), durations, machines, gradients=50, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again != other


def test_functions_run_in_the_order_in_which_they_begin():
    done = []

    class Noted:
        def do(self, command) -> None:
            done.append(command)

    course = simulate(*system(2, learners=1), SLOW_ROLLOUTS, SpeedSpread(), gradients=3, seed=0, work=Noted())
    assert [each.aggregation for each in done if isinstance(each, Publish)] == list(course.aggregations)
    clock = 0
    for command in done:
        if isinstance(command, Publish):
            clock += 1
        else:
            assert isinstance(command, RollOut | Learn)
            assert command.clock == clock  # always the newest version
