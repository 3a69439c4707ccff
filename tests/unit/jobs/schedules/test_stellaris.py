"""The rule of asynchronous training: what starts when, whatever ends in whatever order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import InternalError, SpecError
from marless.jobs.schedules.base import Learn, Publish, RollOut, Step, after
from marless.jobs.schedules.events import ScheduleEvent, read, written
from marless.jobs.schedules.overlapping import Overlapping
from marless.jobs.schedules.stellaris import Stellaris, StellarisConfig
from marless.learning.aggregation.config import AsyncRule, SoftsyncRule, SSPRule, StellarisRule, SyncRule

RULES = [StellarisRule, SoftsyncRule, SSPRule, AsyncRule, SyncRule]


def rule(**settings) -> Stellaris:
    return Stellaris(StellarisConfig.model_validate({"aggregation": "async", **settings}))


def test_actors_never_wait_and_a_learner_starts_as_soon_as_a_batch_is_there():
    stellaris = rule(batch=2)
    first = stellaris.begin(2)
    assert first.commands == (RollOut(0, 0), RollOut(1, 0))
    second = stellaris.sampled(first.state, 1, 10)
    assert second.commands == (RollOut(2, 0),)  # half a batch
    third = stellaris.sampled(second.state, 2, 10)
    assert third.commands == (Learn(0, (1, 2), 0, 20, 0), RollOut(3, 0))  # in order of event; rollout 0 is late


def test_what_starts_after_a_version_starts_from_it():
    stellaris = rule()
    step = stellaris.sampled(stellaris.begin(1).state, 0, 10)
    assert step.commands == (Learn(0, (0,), 0, 10, 0), RollOut(1, 0))
    step = stellaris.computed(step.state, 0)
    (published,) = step.commands
    assert isinstance(published, Publish)
    assert [(each.gradient.clock, each.staleness) for each in published.aggregation.gradients] == [(0, 0)]
    step = stellaris.sampled(step.state, 1, 10)
    assert step.commands == (Learn(1, (1,), 1, 10, 10), RollOut(2, 1))


def test_a_gradient_counts_the_versions_since_its_own():
    stellaris = rule(learners=2)
    step = stellaris.begin(2)
    step = stellaris.sampled(step.state, 0, 10)
    step = stellaris.sampled(step.state, 1, 10)
    step = stellaris.computed(step.state, 1)
    step = stellaris.computed(step.state, 0)
    published = step.commands[0]
    assert isinstance(published, Publish)
    assert [each.staleness for each in published.aggregation.gradients] == [1]
    assert published.aggregation.clock == 1


def test_learners_are_bounded_and_rollouts_wait_for_them():
    stellaris = rule(learners=1, data_lag=8)
    step = stellaris.begin(3)
    for rollout in range(3):
        step = stellaris.sampled(step.state, rollout, 10)
    assert len(step.state.learning) == 1
    assert [each.rollout for each in step.state.waiting] == [1, 2]
    assert len(step.state.sampling) == 3


def test_no_rollout_starts_that_could_be_too_old_when_its_turn_comes():
    stellaris = rule(learners=1, data_lag=2)
    step = stellaris.begin(3)
    assert [each.number for each in step.commands] == [0, 1, 2]
    step = stellaris.sampled(step.state, 0, 10)  # one is learned from, two are under way: three versions come first
    assert step.commands == (Learn(0, (0,), 0, 10, 0),)
    step = stellaris.computed(step.state, 0)
    assert step.commands[1:] == (RollOut(3, 1),)


def test_by_default_no_more_is_under_way_than_actors_and_one_make():
    stellaris = rule(batch=2, learners=4)
    step = after(stellaris, 4, read("r0:10 r1:10"))
    assert step.commands == (Learn(0, (0, 1), 0, 20, 0), RollOut(5, 0))
    step = stellaris.step(step.state, ScheduleEvent("rollout", 2, 10))
    assert step.commands == ()  # one batch is learned from, and two are half there: three versions could come first
    assert stellaris.step(step.state, ScheduleEvent("gradient", 0)).commands[1:] == (RollOut(6, 1),)


def test_rollouts_that_are_too_old_are_dropped_and_counted():
    stellaris = rule(data_lag=1)
    step = stellaris.begin(2)
    for number, learner in enumerate(range(2)):
        step = stellaris.sampled(step.state, max(step.state.sampling), 10)
        step = stellaris.computed(step.state, learner)
        assert step.state.queue.clock == number + 1
    assert 0 in step.state.sampling  # a straggler of version 0
    step = stellaris.sampled(step.state, 0, 10)
    assert (step.state.dropped, step.state.waiting) == (1, ())
    assert not any(isinstance(each, Learn) for each in step.commands)


def test_behind_a_barrier_every_version_has_the_gradients_of_all_actors():
    stellaris = rule(barrier=True, aggregation="sync")
    step = stellaris.begin(2)
    step = stellaris.sampled(step.state, 0, 10)
    step = stellaris.computed(step.state, 0)
    assert step.commands == ()  # rollout 1 is still under way
    step = stellaris.sampled(step.state, 1, 10)
    step = stellaris.computed(step.state, 1)
    published, *started = step.commands
    assert isinstance(published, Publish)
    assert len(published.aggregation.gradients) == 2
    assert started == [RollOut(2, 1), RollOut(3, 1)]


def test_what_fails_is_replaced_and_counted():
    stellaris = rule()
    step = stellaris.not_sampled(stellaris.begin(1).state, 0)
    assert (step.commands, step.state.lost) == ((RollOut(1, 0),), 1)
    step = stellaris.sampled(step.state, 1, 10)
    step = stellaris.not_computed(step.state, 0)
    assert (step.state.lost, step.state.queue.clock) == (2, 0)


def test_gradients_that_wait_for_more_than_can_come_become_a_version():
    stellaris = rule(barrier=True, aggregation={"rule": "softsync", "gradients": 5})
    step = stellaris.begin(2)
    for number in range(2):
        step = stellaris.computed(stellaris.sampled(step.state, number, 10).state, number)
    published = step.commands[0]
    assert isinstance(published, Publish)
    assert published.aggregation.because == "released"


def test_batches_that_a_barrier_could_never_fill_are_refused():
    with pytest.raises(SpecError, match="3 actors do not make whole batches of 2 rollouts"):
        rule(batch=2, barrier=True).begin(3)


def test_an_end_of_what_is_not_under_way_is_a_defect():
    stellaris = rule()
    with pytest.raises(InternalError, match=r"number 7 is not under way; \[0, 1, 2\] are"):
        stellaris.sampled(stellaris.begin(3).state, 7, 10)


def test_a_job_counts_the_env_steps_of_what_was_applied():
    stellaris = rule(batch=2)
    step = after(stellaris, 1, read("r0:10 r1:7 g0 r2:5 r3:4"))
    assert step.state.env_steps == 17
    assert step.commands == (Learn(1, (2, 3), 1, 9, 17), RollOut(4, 1))


def test_the_number_of_actors_changes_where_it_is_told_to():
    stellaris = rule()
    more = stellaris.step(stellaris.begin(2).state, ScheduleEvent("actors", 3))
    assert more.commands == (RollOut(2, 0),)
    fewer = stellaris.step(more.state, ScheduleEvent("actors", 1))
    assert fewer.commands == ()
    assert stellaris.step(fewer.state, ScheduleEvent("rollout", 0, 10)).commands == (Learn(0, (0,), 0, 10, 0),)


def test_a_restart_loses_what_was_under_way_and_keeps_the_versions():
    stellaris = rule(learners=1, data_lag=8, aggregation={"rule": "softsync", "gradients": 2})
    before = after(stellaris, 2, read("r0:10 g0 r1:10 r2:10")).state
    assert (len(before.queue.waiting), len(before.learning), len(before.waiting), len(before.sampling)) == (1, 1, 1, 2)
    step = stellaris.step(before, ScheduleEvent("restart"))
    assert step.commands == (RollOut(5, 0), RollOut(6, 0))
    assert (step.state.lost, step.state.queue.counts.lost) == (4, 1)
    assert (step.state.learning, step.state.waiting, step.state.queue.waiting) == ({}, (), ())


@pytest.mark.parametrize("word", ["r1", "g1:5", "q1", "r:1", "x1", "a", "r1:1:1", "R-1"])
def test_words_that_are_no_event_are_refused(word):
    with pytest.raises(SpecError, match="is no event"):
        read(f"r0:10 {word}")
    with pytest.raises(ValueError, match="is no event"):
        StellarisConfig.model_validate({"order": word})


@given(
    st.sampled_from(RULES),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 6),
    st.booleans(),
    st.lists(
        st.tuples(st.integers(0, 99), st.sampled_from(["ends", "ends", "ends", "fails", "actors", "restart"])),
        max_size=80,
    ),
)
def test_whatever_ends_each_rollout_has_one_fate_and_something_is_under_way(
    kind, actors, batch, learners, data_lag, barrier, events
):
    config = StellarisConfig.model_validate(
        {"batch": batch, "learners": learners, "data_lag": data_lag, "barrier": barrier}
        | {"aggregation": kind.model_validate({}).rule}
    )
    stellaris = Stellaris(config)
    course, again = _Course(config.aggregation.capacity), _Course(config.aggregation.capacity)
    for each in (course, again):
        each.take(stellaris.begin(actors * batch))
        for choice, how in events:
            each.happen(stellaris, batch, choice, how)
    assert course.commands == again.commands
    assert course.learned_once and course.dense
    assert (
        after(stellaris, actors * batch, read(written(course.events))).state == course.state
    )  # as a coordinator recovers


class _Course:
    """Ends what is under way, and checks what follows."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.state = Overlapping(actors=1)
        self.commands = []
        self.events = []

    def take(self, step: Step[Overlapping]) -> None:
        self.state = state = step.state
        self.commands += step.commands
        assert state.sampling or state.learning, "nothing is under way: the job stands still"
        assert len(state.queue.waiting) <= self._capacity

    def happen(self, stellaris: Stellaris, batch: int, choice: int, how: str) -> None:
        match how:
            case "actors":
                event = ScheduleEvent("actors", batch * (1 + choice % 5))
            case "restart":
                event = ScheduleEvent("restart")
            case _:
                event = self._end(choice, "lost " if how == "fails" else "")
        self.events.append(event)
        self.take(stellaris.step(self.state, event))

    def _end(self, choice: int, lost: str) -> ScheduleEvent:
        """What is under way comes to its end, in any order."""
        sampling = [("rollout", number) for number in sorted(self.state.sampling)]
        under_way = sampling + [("gradient", number) for number in sorted(self.state.learning)]
        kind, number = under_way[choice % len(under_way)]
        return ScheduleEvent(f"{lost}{kind}", number, 10 if (lost, kind) == ("", "rollout") else 0)

    @property
    def learned_once(self) -> bool:
        learned = [rollout for each in self.commands if isinstance(each, Learn) for rollout in each.rollouts]
        return len(learned) == len(set(learned))

    @property
    def dense(self) -> bool:
        """Rollouts and learners count without gaps, and so do versions."""
        samples = [each.number for each in self.commands if isinstance(each, RollOut)]
        versions = [each.aggregation.clock for each in self.commands if isinstance(each, Publish)]
        return samples == list(range(len(samples))) and versions == list(range(len(versions)))
