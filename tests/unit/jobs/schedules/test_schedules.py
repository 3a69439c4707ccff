"""Schedules keep their contract, which notices those that do not; and what they take on a virtual clock, by hand."""

import subprocess
import sys

import pytest

from marless.core.errors import InternalError, SpecError
from marless.cost.simulation.virtual import VirtualRun
from marless.jobs.schedules.base import SCHEDULES, RollOut, Train, is_due, made
from marless.jobs.schedules.contract import check_schedule
from marless.jobs.schedules.rounds import (
    PIPELINED,
    SYNCHRONOUS,
    PipelinedConfig,
    Rounds,
    RoundSchedule,
    SynchronousConfig,
)
from marless.jobs.spec import parse
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.learning.algos.registry import ALGORITHMS, algorithm
from tests.unit.cost.estimates.runs import spec_of


@pytest.mark.parametrize("name", sorted(SCHEDULES.modules))
def test_ours_keep_the_contract(name):
    kind = SCHEDULES.find(name)
    check_schedule(kind.make(kind.config_type(name=name)))


def test_a_synchronous_round_is_rolled_out_then_trained():
    assert SYNCHRONOUS.due(Rounds(recorded=3)) == (RollOut(3, clock=3),)
    assert SYNCHRONOUS.due(Rounds(recorded=3, rolled_out=frozenset((3,)))) == (Train(3),)


@pytest.mark.parametrize(
    ("rolled_out", "last", "due"),
    [
        ((), None, (RollOut(3, clock=2),)),  # what an earlier failure has lost
        ((3,), None, (Train(3), RollOut(4, clock=3))),
        ((3, 4), None, (Train(3),)),
        ((3,), 3, (Train(3),)),
        ((3,), 4, (Train(3), RollOut(4, clock=3))),
    ],
)
def test_a_pipelined_round_is_rolled_out_while_the_one_before_is_trained(rolled_out, last, due):
    assert PIPELINED.due(Rounds(recorded=3, rolled_out=frozenset(rolled_out), last=last)) == due


def test_the_first_two_pipelined_rounds_act_with_the_first_versions():
    assert PIPELINED.due(Rounds(recorded=0)) == (RollOut(0, clock=0),)
    assert PIPELINED.due(Rounds(recorded=0, rolled_out=frozenset((0,)))) == (Train(0), RollOut(1, clock=0))


class Scripted(RoundSchedule):
    """A synchronous schedule with one thing wrong."""

    def __init__(self, wrong, ahead=0) -> None:
        self.wrong, self.ahead = wrong, ahead

    def due(self, state):
        found = self.wrong(state)
        return SYNCHRONOUS.due(state) if found is None else found


def ahead_of(decided):
    """Rolls a round out while the one before is trained."""

    def due(state):
        k = state.recorded
        if k not in state.rolled_out:
            return None
        if k + 1 in state.rolled_out or k == state.last:
            return (Train(k),)
        return (Train(k), RollOut(k + 1, decided(k)))

    return due


def restless(state):
    """Trains only while nothing is rolled out ahead."""
    k = state.recorded
    if state.rolled_out == {k} and k != state.last:
        return (RollOut(k + 1, k), Train(k))
    return (Train(k),) if k in state.rolled_out and state.last == k else (RollOut(k, max(k - 1, 0)),)


@pytest.mark.parametrize(
    ("wrong", "ahead", "sentence"),
    [
        (lambda state: (), 0, "nothing is due"),
        (lambda state: (Train(state.recorded),), 0, "it is not rolled out"),
        (lambda state: (RollOut(state.recorded, state.recorded - 1),), 0, "decided before"),
        (lambda state: (RollOut(state.recorded + 1, state.recorded),), 1, "is the next one to be rolled out"),
        (lambda state: (*SYNCHRONOUS.due(state), *SYNCHRONOUS.due(state)), 0, "is due twice"),
        (ahead_of(lambda k: k), 0, "further ahead than 0"),
        (ahead_of(lambda k: k + 1), 1, "only 0 rounds are recorded"),
        (ahead_of(lambda k: k), 1, "was due before|in another state"),
        (restless, 1, "is the next one|was due before"),
        (lambda state: None, 2, "ahead is 2"),
    ],
)
def test_what_breaks_the_contract_is_noticed(wrong, ahead, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_schedule(Scripted(wrong, ahead))


def test_rounds_that_follow_each_other_take_their_durations():
    times, run = VirtualRun.of(SYNCHRONOUS).round(lambda _: 2.0, lambda _: 3.0)
    assert (times.began_s, times.waited_s, times.ended_s) == (0.0, 2.0, 5.0)
    assert (run.recorded, run.ahead) == (1, ())
    times, _ = run.rest(9.0).round(lambda began_s: 1.0 + began_s, lambda began_s: began_s)
    assert (times.began_s, times.waited_s, times.ended_s) == (0.0, 1.0, 2.0)


@pytest.mark.parametrize(("rollout_s", "idle_s", "waited_s"), [(2.0, 0.0, 0.0), (4.0, 0.0, 1.0), (4.0, 0.5, 0.5)])
def test_a_round_waits_only_for_what_its_rollout_takes_longer_than_the_update_before(rollout_s, idle_s, waited_s):
    """The rollout of the second round begins at 2, with the first update, which is recorded at 5."""
    times, run = VirtualRun.of(PIPELINED).round(lambda _: 2.0, lambda _: 3.0)
    assert (times.began_s, times.waited_s, times.ended_s) == (0.0, 2.0, 5.0)
    times, run = run.rest(idle_s).round(lambda _: rollout_s, lambda _: 3.0)
    assert (times.began_s, times.waited_s, times.ended_s) == (-3.0 - idle_s, waited_s, waited_s + 3.0)
    assert run.ahead == ((RollOut(2, clock=1), -3.0),)


def test_nothing_is_rolled_out_beside_the_last_update():
    _, run = VirtualRun.of(PIPELINED, last=0).round(lambda _: 2.0, lambda _: 3.0)
    assert run.ahead == ()


def test_an_algorithm_that_must_see_what_its_present_policies_do_is_refused():
    class FreshConfig(AlgorithmConfig):
        name: str = "fresh"

    SYNCHRONOUS.check(SynchronousConfig(), FreshConfig())
    with pytest.raises(SpecError, match=r"algorithm fresh does not say .* use schedule.name synchronous"):
        PIPELINED.check(PipelinedConfig(), FreshConfig())
    for name in ALGORITHMS.modules:
        PIPELINED.check(PipelinedConfig(), algorithm(name).config_type(name=name))


def test_a_schedule_that_stands_still_is_a_defect():
    with pytest.raises(InternalError, match="does not roll out round 1"):
        VirtualRun.of(Scripted(lambda state: ())).round(lambda _: 1.0, lambda _: 1.0)
    with pytest.raises(InternalError, match="does not train round 1"):
        VirtualRun.of(Scripted(lambda state: (RollOut(0, 0),))).round(lambda _: 1.0, lambda _: 1.0)


@pytest.mark.parametrize(("every", "rounds"), [(2, (2, 4)), (1, (1, 2, 3, 4)), (0, ()), (5, ())])
def test_policies_are_evaluated_every_so_many_rounds(every, rounds):
    assert tuple(number for number in range(5) if is_due(every, number)) == rounds


def test_a_job_names_its_schedule():
    assert spec_of().schedule.name == "synchronous"
    assert spec_of(schedule="synchronous").schedule == spec_of(schedule={"name": "synchronous"}).schedule
    assert made(spec_of().schedule) is SYNCHRONOUS
    with pytest.raises(SpecError, match=r"schedule.*synchronus.*synchronous"):
        parse(spec_of().model_dump(mode="json", by_alias=True) | {"schedule": "synchronus"}, "job")


def test_schedules_know_nothing_of_services():
    heavy = ("grpc", "google.protobuf", "torch", "numpy", "redis", "marless.services")
    code = (
        "import sys, marless.jobs.schedules.base as r, marless.cost.simulation.virtual\n"
        "import marless.jobs.schedules.contract\n"
        "[r.SCHEDULES.find(name) for name in r.SCHEDULES.modules]\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
