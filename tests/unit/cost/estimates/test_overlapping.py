"""Recorded asynchronous runs on modelled slots, by hand."""

from dataclasses import replace

import pytest

from marless.core.errors import SpecError
from marless.cost.simulation.asynchronous import modelled, recorded
from marless.jobs.record import AggregationRecord, GradientRecord
from tests.unit.cost.billing.rounds import invocation, job
from tests.unit.jobs.test_record import record

SPEC = job(
    schedule={"name": "stellaris", "learners": 2, "data_lag": 8, "aggregation": "async"},
    actors={"count": 3, "envs": 1, "steps": 25, "episodes": "fresh"},
)


def version(round_: int):
    gradient = GradientRecord(learner=round_, rollouts=(round_,), env_steps=25, staleness=0, weight=1.0, waited_s=0.0)
    made = AggregationRecord(
        arrivals=f"r{round_}:25 g{round_}", gradients=(gradient,), because="rule", bound=None,
        sampling=3, waiting=0, learning=1, dropped=0, lost=0, refused=0,
    )  # fmt: skip
    functions = (
        invocation("actor", 10.0, 14.0),
        invocation("learner", 10.0, 11.0, id=f"j/gradient-{round_}/0"),
        invocation("learner", 10.0, 12.0, id=f"j/gradient-{round_}/1"),
        invocation("parameter", 12.0, 12.5),
        invocation("critic", 10.0, 10.5, id=f"j/gradient-{round_}/critic/agent_0"),
    )
    return record(round_, aggregation=made, invocations=functions)


RUN = [version(number) for number in range(6)]


def test_durations_are_those_of_functions_and_of_whole_gradients():
    found = recorded(RUN)
    assert found.sample_s == [4.0] * 6
    assert found.learn_s == [2.0] * 6  # the longer of two scopes
    assert found.publish_s == 0.5


def test_cpu_seconds_count_where_the_job_charges_them():
    short = [replace(each, invocations=tuple(replace(one, vcpu_s=0.25) for one in each.invocations)) for each in RUN]
    found = recorded(short, "cpu")
    assert (found.sample_s, found.learn_s, found.publish_s) == ([0.25] * 6, [0.25] * 6, 0.25)
    assert recorded(short) == recorded(RUN)
    by_cpu = SPEC.model_copy(update={"bill": SPEC.bill.model_copy(update={"time": "cpu"})})
    assert modelled(short, by_cpu, slots=None, seed=0).course.published_s[0] == pytest.approx(0.75)


def test_a_run_is_modelled_with_a_slot_for_each_function():
    found = modelled(RUN, SPEC, slots=None, seed=0)
    assert (found.actors, found.learners, found.gradients) == (3, 2, 6)
    # Rollouts end at 4, 4, 4, 8, 8, 8 s; learners at 6, 6, 8.5 (it waits for a version until 6.5), 10, 11, 12.5
    assert found.course.published_s == pytest.approx((6.5, 7.0, 9.0, 10.5, 11.5, 13.0))
    assert found.course.staleness == [0, 1, 1, 1, 1, 1]
    assert found.staleness == pytest.approx(5 / 6)


def test_learners_have_their_slots_first():
    assert modelled(RUN, SPEC, slots=4, seed=0).actors == 2
    with pytest.raises(SpecError, match="2 learners and an actor need 3 vCPUs"):
        modelled(RUN, SPEC, slots=2, seed=0)


def test_a_run_without_a_version_is_refused():
    with pytest.raises(SpecError, match="no version yet"):
        modelled([], SPEC, slots=None, seed=0)
