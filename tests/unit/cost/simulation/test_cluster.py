"""The cluster model: small schedules computed by hand, and bounds that no schedule may break."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.core.settings import FunctionSize, FunctionsSpec
from marless.cost.simulation.cluster import (
    ModelledRun,
    SimulatedFunction,
    lanes,
    makespan,
    modelled,
    modelled_run,
    overheads,
    schedule,
    total,
)
from marless.cost.simulation.virtual import VirtualRun
from marless.jobs.record import PhaseSeconds
from marless.jobs.schedules.rounds import PIPELINED
from tests.unit.cost.billing.rounds import invocation, round_of

FUNCTIONS = FunctionsSpec()


def actors(*seconds: float, queued_s: float = 100.0, **changes):
    """As one slot ran them: each queued at once, and started when the one before had ended."""
    found, now = [], queued_s
    for index, each in enumerate(seconds):
        found.append(invocation("actor", now, now + each, index=index, queued_s=queued_s, **changes))
        now += each
    return found


def phases(rollout: float = 0.0, update: float = 0.0, evaluation: float = 0.0) -> PhaseSeconds:
    return PhaseSeconds(rollout=rollout, update=update, evaluation=evaluation)


@pytest.mark.parametrize(
    ("slots", "seconds"),
    [(1, 14.0), (2, 8.0), (3, 6.0), (4, 5.0)],  # on two 5+3 | 3+3, on three 5 | 3+3 | 3
)
def test_longest_tasks_come_first(slots, seconds):
    tasks = [SimulatedFunction(s) for s in (3.0, 3.0, 5.0, 3.0)]
    assert makespan(schedule(tasks, slots)) == seconds


def test_a_schedule_says_when_and_where():
    placed = schedule([SimulatedFunction(1.0), SimulatedFunction(4.0), SimulatedFunction(2.0)], 2)
    assert [(each.lane, each.start_s, each.end_s) for each in placed] == [(1, 2.0, 3.0), (0, 0.0, 4.0), (1, 0.0, 2.0)]


def test_of_tasks_that_become_ready_at_one_moment_the_longest_is_next():
    # 0 and 1 end at 1; then 3 (5 s) must not wait behind 2 (1 s), which only 0 held back.
    tasks = [
        SimulatedFunction(1.0),
        SimulatedFunction(1.0),
        SimulatedFunction(1.0, (0,)),
        SimulatedFunction(5.0, (1,)),
        SimulatedFunction(5.0, (1,)),
    ]
    placed = schedule(tasks, 2)
    assert [placed[number].start_s for number in (2, 3, 4)] == [6.0, 1.0, 1.0]


def test_a_circle_is_a_defect():
    with pytest.raises(ValueError, match="circle"):
        schedule([SimulatedFunction(1.0, (1,)), SimulatedFunction(1.0, (0,))], 2)


def test_actors_that_queued_run_at_once_where_there_are_slots():
    recorded = round_of(*actors(2.0, 3.0, 2.0), phases=phases(rollout=7.25))
    assert modelled(recorded, FUNCTIONS, 1).rollout == 7.25
    assert modelled(recorded, FUNCTIONS, 2).rollout == 4.25  # 3 | 2+2, and the quarter that the coordinator took
    assert modelled(recorded, FUNCTIONS, 3).rollout == 3.25


def update():
    """A learner of 10 s: 1 in no pass, then post-processing of 3, critics of 2+2 and policies of 1+1 in 6."""
    return (
        invocation("learner", 200.0, 210.0, queued_s=199.5, vcpu_s=9.0),
        invocation("post_process", 201.0, 204.0, name="class", queued_s=0.0),
        invocation("critic", 204.0, 210.0, name="a", queued_s=0.0, vcpu_s=2.0),
        invocation("critic", 204.0, 210.0, name="b", queued_s=0.0, vcpu_s=2.0),
        invocation("policy", 204.0, 210.0, name="a", queued_s=0.0, vcpu_s=1.0),
        invocation("policy", 204.0, 210.0, name="b", queued_s=0.0, vcpu_s=1.0),
    )


@pytest.mark.parametrize(
    # Each function also has its ninth of the second in no pass: 3, 2, 2, 1, 1 become 10/9 times that.
    ("slots", "ninths"),
    [(1, 90), (2, 60), (3, 50), (4, 50), (64, 50)],
)
def test_critics_and_policies_train_side_by_side_after_post_processing(slots, ninths):
    recorded = round_of(*update(), policies=("a", "b"), phases=phases(update=11.0))
    assert overheads(recorded).update == 0.5
    assert modelled(recorded, FUNCTIONS, slots).update == pytest.approx(ninths / 9 + 0.5)


@pytest.mark.parametrize(
    # As above, but policies wait for their critics: 3, then 2 + 2, then 1 + 1.
    ("slots", "ninths"),
    [(1, 90), (2, 60), (64, 60)],
)
def test_functions_wait_for_those_that_the_algorithm_declared(slots, ninths):
    learner, first, critic_a, critic_b, policy_a, policy_b = update()
    recorded = round_of(
        learner,
        first,
        *(replace(each, after=("post_process/class",)) for each in (critic_a, critic_b)),
        *(replace(each, after=(f"critic/{each.name}",)) for each in (policy_a, policy_b)),
        policies=("a", "b"),
        phases=phases(update=11.0),
    )
    assert modelled(recorded, FUNCTIONS, slots).update == pytest.approx(ninths / 9 + 0.5)


def test_a_declared_function_waits_for_nothing_else_and_a_mixer_for_what_it_says():
    """A critic beside post-processing, 4 s; policies of 2 s, then the mixer of 1 s; curvature of 1 s beside it."""
    recorded = round_of(
        invocation("post_process", 0.0, 1.0, name="team", queued_s=0.0),
        invocation("critic", 0.0, 4.0, name="a", queued_s=0.0),
        invocation("policy", 1.0, 3.0, name="a", queued_s=0.0, after=("post_process/team",)),
        invocation("mixer", 3.0, 4.0, name="mixer", queued_s=0.0, after=("policy/a",)),
        invocation("curvature", 3.0, 4.0, name="a", queued_s=0.0),
        policies=("a",),
        phases=phases(update=4.0),
    )
    assert [modelled(recorded, FUNCTIONS, slots).update for slots in (1, 2, 3)] == [9.0, 5.0, 4.0]


def test_an_aggregation_runs_in_no_learner():
    learner = invocation("learner", 200.0, 210.0)
    record = round_of(learner, invocation("parameter", 210.0, 211.0))
    assert modelled(record, FUNCTIONS, 2).update == pytest.approx(10.0)


def test_agent_classes_wait_for_their_own_post_processing_only():
    recorded = round_of(
        invocation("post_process", 0.0, 1.0, name="x", index=0, queued_s=0.0),
        invocation("post_process", 0.0, 5.0, name="y", index=1, queued_s=0.0),
        invocation("policy", 1.0, 5.0, name="a", index=0, queued_s=0.0),
        invocation("policy", 5.0, 6.0, name="b", index=1, queued_s=0.0),
        policies=("a", "b"),
        phases=phases(update=6.0),
    )
    assert modelled(recorded, FUNCTIONS, 2).update == 6.0


def test_curvature_follows_the_training_of_its_policy_and_similarity_runs_beside():
    recorded = round_of(
        invocation("post_process", 0.0, 1.0, name="class", queued_s=0.0),
        invocation("policy", 1.0, 4.0, name="a", queued_s=0.0),
        invocation("curvature", 4.0, 6.0, name="a", queued_s=0.0),
        invocation("similarity", 1.0, 4.5, name="class", queued_s=0.0),
        policies=("a",),
        phases=phases(update=6.0),
    )
    assert [modelled(recorded, FUNCTIONS, slots).update for slots in (1, 2, 3)] == [9.5, 6.0, 6.0]


def test_an_evaluation_takes_slots_of_its_own_phase():
    greedy = (invocation("evaluation", 300.0, 304.0), invocation("evaluation", 300.0, 304.0))
    recorded = round_of(*greedy, phases=phases(evaluation=5.0))
    assert modelled(recorded, FUNCTIONS, 1) == phases(evaluation=8.0)  # queued a second before: nothing around it


def concurrent(update_s: float, evaluation_s: float):
    """A policy that learns for 4 s, and two evaluations of 6 s that began with it."""
    return round_of(
        invocation("policy", 0.0, 4.0, name="a", queued_s=0.0),
        *(invocation("evaluation", 0.5, 6.5, queued_s=0.5, during_update=True) for _ in range(2)),
        policies=("a",),
        phases=phases(update=update_s, evaluation=evaluation_s),
    )


@pytest.mark.parametrize(("slots", "seconds"), [(1, 12.0), (2, 6.0), (3, 2.0), (9, 2.0)])
def test_an_evaluation_beside_the_update_takes_the_slots_that_learners_leave(slots, seconds):
    """On one slot: policy | 6 + 6. On two: policy | 6, from the end of the update, beside 6. On three all at once."""
    assert modelled(concurrent(4.0, 2.0), FUNCTIONS, slots) == phases(update=4.0, evaluation=seconds)


def test_only_what_an_evaluation_takes_longer_than_the_update_is_its_phase():
    assert modelled(concurrent(7.0, 0.0), FUNCTIONS, 3) == phases(update=7.0)  # 3 s of them in no function
    assert modelled(concurrent(4.0, 2.5), FUNCTIONS, 3) == phases(update=4.0, evaluation=2.5)  # half a second in none


def test_policies_of_a_last_round_are_evaluated_after_those_of_the_round_before():
    both = concurrent(4.0, 5.0)
    own = invocation("evaluation", 6.5, 9.5, queued_s=6.5)
    both = replace(both, invocations=(*both.invocations, own))
    assert modelled(both, FUNCTIONS, 3) == phases(update=4.0, evaluation=2.0 + 3.0)
    assert modelled(both, FUNCTIONS, 1) == phases(update=4.0, evaluation=12.0 + 3.0)


@pytest.mark.parametrize(("slots", "first_s", "waited_s"), [(1, 4.0, 4.0), (2, 2.0, 0.0), (3, 2.0, 0.0)])
def test_actors_beside_an_update_take_the_slots_that_learners_leave(slots, first_s, waited_s):
    """Two actors of 2 s and a policy of 4 s. On one slot, the next round's actors come after the policy; on two, they
    take turns beside it, and end with it."""
    learner = invocation("policy", 104.0, 108.0, name="a", queued_s=104.0)
    record = round_of(*actors(2.0, 2.0), learner, policies=("a",), phases=phases(rollout=4.0, update=4.0))
    first, run = ModelledRun(VirtualRun.of(PIPELINED)).after(record, FUNCTIONS, slots)
    second, run = run.after(record, FUNCTIONS, slots)
    third, _ = run.after(record, FUNCTIONS, slots)
    assert first == phases(rollout=first_s, update=4.0)
    assert second == third == phases(rollout=waited_s, update=4.0)
    whole = modelled_run([record, record, record], FUNCTIONS, slots, PIPELINED)
    assert whole == total(first) + total(second) + total(third)
    assert modelled_run([record] * 3, FUNCTIONS, slots) == 3 * (first_s + 4.0)


def test_lanes_that_are_taken_are_free_later():
    """Two of three lanes are free from 2 s on: 4 | 3 | 1 + 1, the last two after 2 s."""
    placed = schedule(
        [SimulatedFunction(4.0), SimulatedFunction(3.0), SimulatedFunction(1.0), SimulatedFunction(1.0)],
        3,
        taken=2,
        until_s=2.0,
    )
    assert [(each.lane, each.start_s, each.end_s) for each in placed[:2]] == [(0, 0.0, 4.0), (1, 2.0, 5.0)]
    assert [(each.lane, each.start_s, each.end_s) for each in placed[2:]] == [(2, 2.0, 3.0), (2, 3.0, 4.0)]


def test_a_phase_without_functions_takes_what_it_took():
    assert modelled(round_of(phases=phases(0.1, 0.2, 0.3)), FUNCTIONS, 4) == phases(0.1, 0.2, 0.3)


def test_what_was_awaited_of_a_start_counts_and_the_rest_was_hidden():
    late = invocation("actor", 105.0, 107.0, queued_s=102.0, cold=True, init_s=4.0)
    assert modelled(round_of(late, phases=phases(rollout=5.0)), FUNCTIONS, 8).rollout == 5.0  # 3 of the 4 s, and 2
    early = invocation("actor", 105.0, 107.0, queued_s=105.0, cold=True, init_s=4.0)
    assert modelled(round_of(early, phases=phases(rollout=2.0)), FUNCTIONS, 8).rollout == 2.0


def test_a_clock_that_was_set_back_makes_no_time_negative():
    odd = invocation("actor", 105.0, 101.0, queued_s=110.0)
    assert modelled(round_of(odd, phases=phases(rollout=1.0)), FUNCTIONS, 1).rollout == 1.0


def test_functions_take_as_many_slots_as_they_have_vcpus():
    size = FunctionSize(vcpus=2.0)
    recorded = round_of(*actors(1.0, 1.0, 1.0), phases=phases(rollout=3.0))
    assert modelled(recorded, FunctionsSpec(actor=size), 5).rollout == 2.0
    assert lanes(7, FunctionSize(vcpus=0.07)) == 100  # 7 / 0.07 is 99.99999999999999
    with pytest.raises(SpecError, match=r"1 vCPUs hold no actor of 2 vCPUs; give at least 2"):
        modelled(recorded, FunctionsSpec(actor=size), 1)


def test_a_run_takes_the_sum_of_its_rounds():
    recorded = round_of(*actors(2.0, 3.0), phases=phases(5.0, 0.5, 0.25))
    assert modelled_run([recorded, recorded], FUNCTIONS, 2) == 7.5
    assert total(modelled(recorded, FUNCTIONS, 2)) == 3.75


@st.composite
def graphs(draw):
    """Tasks that wait for earlier ones only."""
    found = []
    for number, seconds in enumerate(draw(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=12))):
        before = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        found.append(SimulatedFunction(seconds, tuple(sorted(before))))
    return found


@given(graphs(), st.integers(1, 5))
def test_a_schedule_keeps_order_slots_and_bounds(tasks, slots):
    placed = schedule(tasks, slots)
    assert placed == schedule(tasks, slots)
    for task, place in zip(tasks, placed, strict=True):
        assert place.end_s == place.start_s + task.seconds
        assert all(placed[before].end_s <= place.start_s for before in task.after)
    for lane in range(slots):
        spans = sorted((p.start_s, p.end_s) for p in placed if p.lane == lane)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    work = sum(task.seconds for task in tasks)
    longest = max(task.seconds for task in tasks)
    assert makespan(placed) >= max(longest, work / slots * (1 - 1e-12))
    assert makespan(placed) <= work * (1 + 1e-12)
    if not any(task.after for task in tasks):
        assert makespan(placed) <= (work / slots + longest) * (1 + 1e-12)


@given(st.lists(st.floats(0.001, 50.0), min_size=1, max_size=20), st.integers(1, 8))
def test_a_modelled_round_is_never_shorter_than_its_work_allows(seconds, slots):
    recorded = round_of(*actors(*seconds), phases=phases(rollout=sum(seconds)))
    took = modelled(recorded, FUNCTIONS, slots).rollout
    assert took >= max(sum(seconds) / slots, *seconds, 0.0) * (1 - 1e-9)


def test_by_cpu_time_functions_and_starts_occupy_slots_as_long_as_they_compute():
    waited = [invocation("actor", 101.0, 105.0, index=i, queued_s=100.0, vcpu_s=1.0) for i in range(2)]
    cold = [replace(each, cold=True, init_s=1.0, init_cpu_s=0.25) for each in waited]
    record = round_of(*cold, actors=2, phases=phases(rollout=5.0))
    run = ModelledRun(VirtualRun.of(PIPELINED), time="cpu")
    first, after = run.after(record, FUNCTIONS, 1)
    assert (first.rollout, after.time) == (2 * 1.25, "cpu")
    assert modelled_run([record], FUNCTIONS, 1, time="cpu") == 2.5
    assert modelled_run([record], FUNCTIONS, 1) == 10.0
