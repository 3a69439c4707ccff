"""A round rebuilt under another plan: what stays, what is modelled, what stands for what."""

from dataclasses import replace

import numpy as np
import pytest

from marless.core.group import FunctionNode, Group
from marless.core.settings import FunctionsSpec
from marless.cost.simulation.cluster import Timelines
from marless.cost.simulation.durations import DurationModel
from marless.cost.simulation.rounds import ActorSlots, PlannedRound, Source, rebuild, stand_in
from marless.jobs.job import Function
from marless.jobs.record import Distances, GroupRecord, PhaseSeconds
from marless.jobs.schedules.rounds import SYNCHRONOUS
from marless.jobs.usage import usage
from marless.learning.algos import registry as algorithms
from marless.learning.algos.learner import Scope
from tests.unit.cost.billing.rounds import invocation, round_of

ippo = algorithms.algorithm("ippo")
IPPO = ippo.config_type(name="ippo")
mappo = algorithms.algorithm("mappo")
MAPPO = mappo.config_type(name="mappo")
FUNCTIONS = FunctionsSpec()
MACHINE = ActorSlots(functions=FUNCTIONS, slots=2)
PHASES = PhaseSeconds(rollout=2.5, update=11.0, evaluation=0.5)


def recorded(**changes):
    """Two actors of 1 and 2 s, then a learner of 10 s, one of them in no pass; an evaluation of 0.25 s."""
    runs = (
        invocation("actor", 100.1, 101.1, queued_s=100.1, worker="actor-0", index=0),
        invocation("actor", 100.1, 102.1, queued_s=100.1, worker="actor-1", index=1),
        invocation("learner", 103.0, 113.0, queued_s=102.8, vcpu_s=9.0),
        invocation("post_process", 104.0, 107.0, name="class", queued_s=0.0),
        invocation("critic", 107.0, 113.0, name="a", queued_s=0.0, vcpu_s=2.0),
        invocation("critic", 107.0, 113.0, name="b", queued_s=0.0, vcpu_s=2.0),
        invocation("policy", 107.0, 113.0, name="a", queued_s=0.0, vcpu_s=1.0),
        invocation("policy", 107.0, 113.0, name="b", queued_s=0.0, vcpu_s=1.0),
        invocation("evaluation", 113.6, 113.85, queued_s=113.6),
    )
    fields = {
        "policies": ("a", "b"), "phases": PHASES, "started_s": 100.0, "ended_s": 114.1, "env_steps": 100,
        "metrics": {"a": {"curvature": 1.0}, "b": {"curvature": 2.0}}, "versions": {"a": 2, "b": 2}, "distances": (),
    }  # fmt: skip
    return round_of(*runs, **fields | changes)


def source(record) -> Source:
    return Source(
        record=record,
        env_steps=100,
        pooling="pooled",
        curvature=any(each.function == "curvature" for each in record.invocations),
        durations=DurationModel([record], "pooled"),
        distances=record.distances,
        distances_round=record.round,
        rng=np.random.default_rng(0),
    )


SCOPE = Scope(0, (0,), "class")


ON_TIME = Timelines.of(SYNCHRONOUS)


def declared(groups) -> tuple[Function, ...]:
    """As PPO declares them for one class."""
    return tuple(Function(SCOPE, node) for node in ippo.functions(IPPO, SCOPE, groups, None))


def plan(*groups: Group, **changes) -> PlannedRound:
    groups = groups or (Group("a", ("a",)), Group("b", ("b",)))
    fields = {
        "actors": 2, "groups": groups, "functions": declared(groups), "decisions": (),
        "curvature": False, "similarity": False, "pooling": "pooled",
    }  # fmt: skip
    return PlannedRound(**fields | changes)


def rebuilt(record, asked, **changes):
    return rebuild(source(record), asked, MACHINE, **{"before": None, "timelines": ON_TIME} | changes)


def of(record, function: str):
    return {each.name: each for each in record.invocations if each.function == function}


def test_the_recorded_plan_gives_the_recorded_round():
    one = recorded()
    found = rebuilt(one, plan(decisions=one.decisions))
    assert (found.record, found.assumed, found.timelines.later_s) == (one, (), 0.0)


def test_a_later_round_is_the_same_work_at_another_time():
    one = recorded()
    later = rebuilt(one, plan(decisions=one.decisions), timelines=replace(ON_TIME, later_s=8.0)).record
    assert (later.started_s, later.ended_s, later.phases) == (108.0, pytest.approx(122.1), PHASES)
    for before, after in zip(one.invocations, later.invocations, strict=True):
        assert after.start_s == before.start_s + 8.0
        assert after.queued_s == (before.queued_s + 8.0 if before.queued_s else 0.0)
    assert usage(later, FUNCTIONS)[2].seconds == pytest.approx(usage(one, FUNCTIONS)[2].seconds)


def test_a_shared_policy_is_named_started_and_worked_for_as_decided():
    shared = rebuilt(recorded(), plan(Group("b", ("a", "b")))).record
    assert shared.groups == (GroupRecord(policy="b", agents=("a", "b"), version=1),)
    assert shared.metrics == {"b": {"curvature": 2.0}}
    assert {name: each.vcpu_s for name, each in of(shared, "critic").items()} == {"b": 4.0}
    assert {name: each.vcpu_s for name, each in of(shared, "policy").items()} == {"b": 2.0}
    assert of(shared, "post_process")["class"].vcpu_s == 3.0  # of the class, whoever shares
    assert sum(use.seconds for use in usage(shared, FUNCTIONS)) == pytest.approx(3.25 + 9.0 + 1.0)


def test_a_draw_halves_the_work_and_the_update_is_shorter_by_that():
    found = rebuilt(recorded(), plan(Group("b", ("a", "b")), pooling="drawn"))
    assert of(found.record, "learner")[""].end_s == pytest.approx(103.0 + 1.0 + 9.0 * 6 / 9)  # 3 + 2 + 1 of 9 vCPU s
    assert found.record.phases.update == pytest.approx(8.0)
    assert found.timelines.later_s == pytest.approx(-3.0)
    assert of(found.record, "evaluation")[""].start_s == pytest.approx(110.6)
    assert found.record.ended_s == pytest.approx(111.1)
    assert found.assumed == ("metrics of a+b are those recorded of b (b)",)


@pytest.mark.parametrize(("took_s", "evaluation_s"), [(12.0, 0.5 + 4.0), (9.0, 0.5 + 1.0), (6.0, 0.5)])
def test_an_evaluation_beside_a_shorter_update_ends_after_it(took_s, evaluation_s):
    """The update is 3 s shorter, 8 s, the evaluation that begins with it is not; half a second lies in no function."""
    one = recorded()
    greedy = invocation("evaluation", 102.5, 102.5 + took_s, queued_s=102.5, during_update=True)
    waited = replace(PHASES, evaluation=0.5 + max(took_s - PHASES.update, 0.0))
    one = replace(one, invocations=(*one.invocations[:-1], greedy), phases=waited)
    asked = plan(Group("b", ("a", "b")), pooling="drawn")
    found = rebuilt(one, asked, timelines=replace(ON_TIME, later_s=2.0))
    assert found.record.phases.update == pytest.approx(8.0)
    assert found.record.phases.evaluation == pytest.approx(evaluation_s)
    assert found.timelines.later_s == pytest.approx(2.0 - 3.0 + evaluation_s - waited.evaluation)
    assert of(found.record, "evaluation")[""].start_s == pytest.approx(104.5)  # with the update, which starts as before
    same = rebuilt(one, plan(decisions=one.decisions))
    assert (same.record, same.timelines.later_s) == (one, 0.0)


def test_a_draw_from_the_groups_that_were_recorded_is_less_work_too():
    one = recorded()
    runs = tuple(each for each in one.invocations if each.name != "b")
    shared = replace(one, invocations=runs, groups=(GroupRecord(policy="a", agents=("a", "b"), version=2),))
    drawn = rebuilt(shared, plan(Group("a", ("a", "b")), pooling="drawn")).record
    assert of(drawn, "policy")["a"].vcpu_s == pytest.approx(0.5)
    assert of(rebuilt(shared, plan(Group("a", ("a", "b")))).record, "policy")["a"].vcpu_s == 1.0


def test_where_a_group_starts_from_is_as_decided():
    changed = rebuilt(recorded(), plan(Group("a", ("a",), "b"), Group("b", ("b",)))).record
    assert [group.source for group in changed.groups] == ["b", ""]
    assert changed.versions == {"a": 2, "b": 2}


def test_more_actors_queue_on_the_slots_and_everything_goes_over_more_samples():
    one = recorded()
    found = rebuilt(one, plan(actors=6))
    actors = [each for each in found.record.invocations if each.function == "actor"]
    work = sum(each.end_s - each.start_s for each in actors)
    assert len(actors) == 6
    assert all(
        each.end_s - each.start_s == pytest.approx(1.0) or each.end_s - each.start_s == pytest.approx(2.0)
        for each in actors
    )
    busy_s = max(each.end_s for each in actors) - found.record.started_s
    assert found.record.phases.rollout == pytest.approx(busy_s + 0.5)  # and the half second that the coordinator took
    assert busy_s >= work / 2
    assert found.record.env_steps == 300
    assert of(found.record, "policy")["a"].vcpu_s == pytest.approx(3.0)
    assert of(found.record, "learner")[""].end_s - of(found.record, "learner")[""].start_s == pytest.approx(30.0)


def test_a_cold_start_comes_with_the_actor_that_is_drawn():
    cold = invocation("actor", 103.0, 104.0, queued_s=100.1, cold=True, init_s=1.5)
    record = recorded()
    record = replace(record, invocations=(cold, *record.invocations[2:]), actors=1)
    found = rebuilt(record, plan(actors=2)).record
    for each in found.invocations[:2]:
        assert (each.cold, each.init_s) == (True, 1.5)
        assert each.start_s - each.queued_s == pytest.approx(1.5)
        assert each.queued_s == pytest.approx(100.0)


def test_curvature_that_nobody_needs_is_not_measured():
    one = recorded()
    more = (*one.invocations, invocation("curvature", 112.0, 113.0, name="a", queued_s=0.0))
    one = replace(one, invocations=more)
    assert rebuilt(one, plan(curvature=True, decisions=one.decisions)).record.phases == one.phases
    without = rebuilt(one, plan()).record
    assert not of(without, "curvature")
    assert without.phases.update < one.phases.update


def test_similarity_that_was_not_measured_here_takes_what_it_took_nearby_and_counts():
    one, distances = recorded(), (Distances(agents=("a", "b"), values=((0.0, 1.0), (1.0, 0.0))),)
    near = recorded(round_=1, distances=distances)
    near = replace(near, invocations=(*near.invocations, invocation("similarity", 110.0, 111.5, name="class")))
    borrowing = replace(
        source(one), durations=DurationModel([one, near], "pooled"), distances=distances, distances_round=1
    )
    found = rebuild(borrowing, plan(similarity=True), MACHINE, before=None, timelines=ON_TIME)
    assert of(found.record, "similarity")["class"].vcpu_s == 1.5
    assert found.record.distances == distances
    assert found.assumed == ("distances are those recorded 1 round(s) later",)
    assert found.timelines.later_s == pytest.approx(1.5)  # passes of 9 vCPU s in 9 s become 10.5
    asked_for_nothing = rebuild(source(near), plan(), MACHINE, before=None, timelines=ON_TIME)
    assert not of(asked_for_nothing.record, "similarity")
    assert asked_for_nothing.record.distances == ()


def test_a_joint_critic_serves_whoever_there_is():
    one = recorded()
    joint = [replace(each, name="critic.class") for each in one.invocations if each.function == "critic"][:1]
    one = replace(
        one,
        invocations=(*(each for each in one.invocations if each.function != "critic"), *joint),
        metrics={**one.metrics, "critic.class": {"value_loss": 3.0}},
        versions={**one.versions, "critic.class": 2},
    )
    groups = (Group("a", ("a", "b")),)
    nodes = mappo.functions(MAPPO, SCOPE, groups, None)
    shared = rebuilt(one, plan(*groups, functions=tuple(Function(SCOPE, node) for node in nodes))).record
    assert of(shared, "critic")["critic.class"].vcpu_s == 2.0
    assert shared.metrics == {"a": {"curvature": 1.0}, "critic.class": {"value_loss": 3.0}}
    assert shared.versions == {"a": 1, "critic.class": 2}


def test_a_teams_functions_are_those_that_its_algorithm_declares_for_other_groups():
    """One learner of two classes: a mixer that has the name of a policy, and batches that no round makes larger."""
    runs = (
        invocation("learner", 103.0, 113.0, queued_s=102.8, vcpu_s=8.0),
        invocation("post_process", 104.0, 106.0, name="team", queued_s=0.0),
        invocation("mixer", 106.0, 108.0, name="b", queued_s=0.0, after=("post_process/team",)),
        *(invocation("policy", 108.0, 113.0, name=name, queued_s=0.0, vcpu_s=1.0) for name in "abcd"),
    )
    one = recorded(policies=tuple("abcd"), versions=dict.fromkeys("abcd", 2))
    one = replace(one, invocations=(*one.invocations[:2], *runs))
    groups = (Group("b", ("a", "b")), Group("c", ("c",)), Group("d", ("d",)))
    nodes = [
        FunctionNode("post_process", "team"),
        FunctionNode("mixer", "b", after=("post_process/team",)),
        *(FunctionNode("policy", group.policy, after=("mixer/b",)) for group in groups),
    ]
    durations, TEAM = DurationModel([one], "pooled", drawn=50), Scope(0, (0, 1), "team")
    asked = plan(*groups, actors=4, functions=tuple(Function(TEAM, node) for node in nodes))
    found = rebuild(replace(source(one), durations=durations), asked, MACHINE, before=None, timelines=ON_TIME).record
    assert {name: each.vcpu_s for name, each in of(found, "policy").items()} == {"b": 2.0, "c": 1.0, "d": 1.0}
    assert of(found, "policy")["b"].after == ("mixer/b",)
    assert [of(found, "mixer")["b"].vcpu_s, of(found, "post_process")["team"].vcpu_s] == [2.0, 2.0]
    assert sum(each.function == "actor" for each in found.invocations) == 4


def test_heads_are_counted_on_from_the_round_before():
    before = recorded(versions={"a": 7, "b": 5})
    shared = rebuilt(recorded(), plan(Group("b", ("a", "b"), "a")), before=before).record
    assert shared.versions == {"a": 7, "b": 8}
    assert shared.groups == (GroupRecord(policy="b", agents=("a", "b"), version=8, source="a"),)
    assert shared.env_steps == before.env_steps + 100


def test_a_learner_that_the_record_lacks_is_taken_from_its_functions():
    one = recorded()
    one = replace(one, invocations=tuple(each for each in one.invocations if each.function != "learner"))
    found = rebuilt(one, plan(actors=4)).record
    assert not of(found, "learner")
    assert of(found, "policy")["a"].vcpu_s == pytest.approx(2.0)
    one_pass = of(found, "policy")["a"]
    assert one_pass.end_s - one_pass.start_s == pytest.approx(18.0)


def test_who_stands_for_a_group():
    known = (
        GroupRecord(policy="x", agents=("a", "b"), version=1),
        GroupRecord(policy="c", agents=("c",), version=1),
        GroupRecord(policy="d", agents=("d",), version=1),
    )
    assert stand_in(known, Group("other", ("b", "a"))).policy == "x"
    assert stand_in(known, Group("b", ("b",))).policy == "x"
    assert stand_in(known, Group("d", ("c", "d"))).policy == "d"
    assert stand_in(known, Group("class", ("c", "d"))).policy == "c"
