"""Replays: a run under its own policies is itself; under others it is modelled, labelled, and the same for a seed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.cost.estimates.simulate import replayed_spec, simulate, slots_of
from marless.cost.simulation.cluster import modelled, total
from marless.jobs.scaling.base import ScalingDecision
from marless.jobs.scaling.fixed import FixedScaling
from marless_minions.kind import MinionsConfig
from tests.plugins.minions.made import saved, scheduler, task
from tests.unit.cost.estimates.runs import run_of, spec_of

SCALING = [
    {"name": "fixed"},
    {"name": "max"},
    {"name": "adapt", "goal": -15.0},
    {"name": "nitro"},
    {"name": "marless", "window": 3},
    {"name": "gns"},
    {"name": "echo", "window": 3},
    {"name": "variance", "window": 4},
    {"name": "nitro", "deadline_s": 30.0},
    {"name": "given", "actors": [4, 2, 3, 1]},
    {"name": "marless", "window": 3, "placebo": {"median": 1.0, "deviation": 0.4}},
]
SHARING = [{"name": "fixed"}, {"name": "fixed", "groups": "shared"}, {"name": "marless", "window": 3}]
"""A short window, so that runs of a dozen rounds share and split."""
BOTH = {"scaling": SCALING[4], "sharing": SHARING[2]}


def changed(spec, scaling="", sharing="", *overrides):
    return replayed_spec(spec, scaling=scaling, sharing=sharing, overrides=overrides)


@settings(max_examples=15)
@given(st.sampled_from(SCALING), st.sampled_from(SHARING), st.integers(0, 2**20))
def test_a_run_under_its_own_policies_is_itself(scaling, sharing, seed):
    spec = spec_of(scaling=scaling, sharing=sharing)
    records = run_of(spec, 12, seed)
    replay = simulate(records, spec, spec, seed=seed + 1)
    assert [step.replayed for step in replay.steps] == list(records)
    assert not any(step.assumed or step.differs for step in replay.steps)
    assert replay.replayed_usd == replay.recorded_usd


@settings(max_examples=8)
@given(st.integers(0, 2**20))
def test_a_run_of_unlike_agents_under_its_own_policies_is_itself(seed):
    adversary = {"name": "mpe/simple_adversary", "options": {"agents": 4}}
    spec = spec_of(env=adversary, algorithm="mappo", **BOTH)
    records = run_of(spec, 8, seed)
    assert [step.replayed for step in simulate(records, spec, spec).steps] == list(records)


@settings(max_examples=8)
@given(st.integers(0, 2**20), st.sampled_from(["paper", "billed", "serverful"]))
def test_a_run_within_a_budget_under_its_own_policies_is_itself(seed, accounting):
    scaling = {"name": "max", "within_budget": True}
    free = spec_of(scaling={"name": "max"})
    records = run_of(free, 4, seed)
    usd = simulate(records, free, free).recorded_usd[accounting] / 2
    spec = spec_of(scaling=scaling, stop={"rounds": 4, "cost_usd": usd}, bill={"accounting": accounting})
    tight = run_of(spec, 4, seed)
    replay = simulate(tight, spec, spec)
    assert [step.replayed for step in replay.steps] == list(tight[: len(replay.steps)])
    assert bool(replay.ending) == (len(replay.steps) < 4)
    assert tight[1].actors < 6


def test_runs_that_are_replayed_here_share_split_and_scale():
    records = run_of(spec_of(**BOTH), 12, 3)
    assert len({record.actors for record in records}) > 1
    assert {len(record.groups) for record in records} == {1, 2, 3} or {len(record.groups) for record in records} == {
        2,
        3,
    }
    assert any(group.source for record in records for group in record.groups)


@settings(max_examples=10)
@given(st.integers(1, 80), st.integers(0, 2**20))
def test_the_cluster_changes_no_decision_that_does_not_look_at_time(slots, seed):
    spec = spec_of(**BOTH)
    records = run_of(spec, 8, seed)
    replay = simulate(records, spec, spec, slots=slots)
    assert replay.slots == slots
    for record, step in zip(records, replay.steps, strict=True):
        assert step.replayed == record
        assert step.replayed_s == modelled(record, spec.functions, slots)


def test_times_are_modelled_on_the_slots_that_were_used_unless_others_are_asked_for():
    spec = spec_of()
    records = run_of(spec, 3)
    assert slots_of(records, spec.functions) == 2
    assert simulate(records, spec, spec).slots == 2
    wide = simulate(records, spec, spec, slots=64)
    for step in wide.steps:
        longest = max(each.end_s - each.start_s for each in step.recorded.invocations if each.function == "actor")
        around = total(step.recorded_s) - longest
        assert step.recorded_s.rollout == pytest.approx(longest + 0.003)  # all six at once, and the coordinator's part
        assert around < total(step.recorded.phases)


def test_other_actors_are_drawn_from_the_recorded_ones_and_other_samples_cost_in_proportion():
    spec = spec_of()
    records = run_of(spec, 4)
    replay = simulate(records, spec, changed(spec, "max", "", "actors.count=12"))
    recorded = {
        each.end_s - each.start_s for record in records for each in record.invocations if each.function == "actor"
    }
    for step in replay.steps:
        before, after = step.recorded, step.replayed
        assert (after.actors, after.env_steps) == (12, 2 * before.env_steps)
        actors = [each for each in after.invocations if each.function == "actor"]
        assert len(actors) == 12
        for each in actors:
            assert min(abs((each.end_s - each.start_s) - other) for other in recorded) < 1e-9
        for function in ("post_process", "critic", "policy"):
            ours, theirs = (
                {each.name: each.vcpu_s for each in record.invocations if each.function == function}
                for record in (after, before)
            )
            assert ours == pytest.approx({name: 2 * seconds for name, seconds in theirs.items()})
    assert replay.lines["policy"].sizes == 1


def test_twelve_actors_queue_on_the_slots_that_there_are():
    spec = spec_of()
    records = run_of(spec, 2)
    asked = changed(spec, "max", "", "actors.count=12")
    narrow, wide = (simulate(records, spec, asked, slots=slots).steps[0] for slots in (2, 12))
    work = sum(each.end_s - each.start_s for each in narrow.replayed.invocations if each.function == "actor")
    assert narrow.replayed_s.rollout >= work / 2
    assert wide.replayed_s.rollout < narrow.replayed_s.rollout


def test_a_shared_policy_does_its_members_work_if_pooled_and_one_members_if_drawn():
    spec = spec_of()
    records = run_of(spec, 2)
    for samples, factor in (("pooled", 3.0), ("drawn", 1.0)):
        asked = changed(spec, "", "", "sharing.groups=shared", f"sharing.samples={samples}")
        for step in simulate(records, spec, asked).steps:
            first = {each.function: each.vcpu_s for each in step.recorded.invocations if each.name == "agent_0"}
            shared = {each.function: each.vcpu_s for each in step.replayed.invocations if each.name == "agent"}
            assert shared["policy"] == pytest.approx(factor * first["policy"])
            assert shared["critic"] == pytest.approx(factor * first["critic"])
            assert step.replayed.metrics == {"agent": step.recorded.metrics["agent_0"]}
            assert step.assumed == ("metrics of agent_0+agent_1+agent_2 are those recorded of agent_0 (agent_0)",)


def test_a_replayed_round_hangs_together():
    spec = spec_of(agents=4, **BOTH)
    records = run_of(spec, 12, 5)
    replay = simulate(records, spec, changed(spec, "nitro", "", "actors.count=9", "sharing.window=4"))
    before = None
    for step in replay.steps:
        record = step.replayed
        assert sorted(agent for group in record.groups for agent in group.agents) == [f"agent_{i}" for i in range(4)]
        assert sum(each.function == "actor" for each in record.invocations) == record.actors
        assert {each.name for each in record.invocations if each.function == "policy"} == {
            group.policy for group in record.groups
        }
        assert all(record.versions[group.policy] == group.version for group in record.groups)
        assert record.returns == step.recorded.returns
        assert min(each.start_s for each in record.invocations) >= record.started_s - 1e-6
        assert max(each.end_s for each in record.invocations) <= record.ended_s + 1e-6
        assert all(each.end_s >= each.start_s for each in record.invocations)
        if before:
            assert record.started_s > before.ended_s
            assert record.env_steps > before.env_steps
        before = record
    assert any(step.differs for step in replay.steps)


def test_a_replay_is_the_same_for_a_seed_and_another_for_another():
    spec = spec_of()
    records = run_of(spec, 3)
    asked = changed(spec, "max", "", "actors.count=5")
    one, same, other = (simulate(records, spec, asked, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one.steps != other.steps
    assert simulate(records, spec, asked).seed == spec.seed


def test_distances_of_the_nearest_round_stand_in_and_are_called_that():
    spec = spec_of(agents=4, **BOTH)
    records = run_of(spec, 14, 1)
    measured = [record.round for record in records if record.distances]
    replay = simulate(records, spec, changed(spec, "", "", "sharing.window=5"))
    borrowed = [step for step in replay.steps if step.replayed.distances and not step.recorded.distances]
    assert measured
    assert borrowed
    for step in borrowed:
        nearest = min(measured, key=lambda other: (abs(other - step.recorded.round), other))
        assert step.replayed.distances == records[nearest].distances
        away = nearest - step.recorded.round
        said = f"distances are those recorded {abs(away)} round(s) {'later' if away > 0 else 'earlier'}"
        assert said in step.assumed
        assert any(each.function == "similarity" for each in step.replayed.invocations)


@pytest.mark.parametrize(
    ("scaling", "sharing", "sentence"),
    [
        (
            "marless", "",
            "scaling 'marless' decides from each policy's curvature, which the recorded run did not measure; record "
            "one that does: train the job with --set scaling.name=marless",
        ),
        (
            "gns", "",
            "scaling 'gns' decides from each policy's noise scale, which the recorded run did not measure; record one "
            "that does: train the job with --set scaling.name=gns",
        ),
        (
            "", "marless",
            "sharing 'marless' decides from each policy's curvature, which the recorded run did not measure; record "
            "one that does: train the job with --set sharing.name=marless",
        ),
    ],
)  # fmt: skip
def test_a_policy_that_needs_what_was_not_measured_is_refused(scaling, sharing, sentence):
    spec = spec_of()
    records = [replace(record, metrics={}) for record in run_of(spec, 2)]
    with pytest.raises(SpecError) as error:
        simulate(records, spec, changed(spec, scaling, sharing))
    assert str(error.value) == sentence


def test_a_policy_that_asks_how_alike_agents_are_is_refused_where_that_was_never_measured():
    spec = spec_of(agents=4)
    records = run_of(spec, 12)  # made-up metrics hold curvature, but nobody asked for distances
    with pytest.raises(SpecError, match="asks how alike the agents are, and the recorded run measured it in no round"):
        simulate(records, spec, changed(spec, "", "marless", "sharing.window=3"))


def test_distances_of_another_similarity_are_refused():
    spec = spec_of(agents=4, **BOTH)
    records = run_of(spec, 14, 1)
    asked = changed(spec, "", "", "sharing.window=5", "sharing.similarity=policy_distance")
    with pytest.raises(SpecError, match=r"measured it another way \(sharing.similarity\)"):
        simulate(records, spec, asked)


def test_nothing_to_replay_is_said():
    with pytest.raises(SpecError, match="no round has been recorded yet"):
        simulate([], spec_of(), spec_of())
    with pytest.raises(SpecError, match="have a gap or do not begin with round 1"):
        simulate(run_of(spec_of(), 3)[1:], spec_of(), spec_of())


@pytest.mark.parametrize("override", ["env.name=mpe/simple_tag", "actors.envs=9", "seed=3", "algorithm.lr=0.1"])
def test_what_was_fixed_when_it_was_recorded_cannot_change(override):
    with pytest.raises(SpecError, match=r"can change scaling, sharing, functions, bill, stop and actors\.count"):
        changed(spec_of(), "", "", override)


def test_another_policy_starts_from_its_own_settings_and_the_same_one_keeps_its():
    spec = spec_of(scaling={"name": "nitro", "window": 4}, sharing={"name": "fixed", "groups": "shared"})
    assert changed(spec, "nitro").scaling == spec.scaling
    assert changed(spec, "max").scaling.name == "max"
    assert changed(spec, "", "fixed").sharing == spec.sharing
    with pytest.raises(SpecError, match="unknown scaling policy 'nope'"):
        changed(spec, "nope")


def test_a_replay_ends_where_its_stop_rules_say():
    spec = spec_of()
    records = run_of(spec, 4)
    fewer = simulate(records, spec, changed(spec, "", "", "stop.rounds=2"))
    assert (len(fewer.steps), fewer.ending) == (2, "2 rounds done")
    one_round = fewer.steps[0].replayed_usd["paper"]
    asked = changed(spec, "", "", f"stop.cost_usd={one_round * 1.5}", "bill.accounting=paper")
    spent = simulate(records, spec, asked)
    assert len(spent.steps) == 2
    assert spent.ending.startswith("0.0")


def test_a_list_and_a_placebo_are_asked_what_if():
    spec = spec_of(**BOTH)
    records = run_of(spec, 8)
    listed = simulate(records, spec, changed(spec, "given", "", "scaling.actors=[3, 1, 2]"))
    assert [step.replayed.actors for step in listed.steps] == [3, 1, 2, 2, 2, 2, 2, 2]
    drawn = simulate(records, spec, changed(spec, "", "", "scaling.placebo={median: 1.0, deviation: 0.4}"))
    reasons = [step.replayed.decisions[0].reason for step in drawn.steps]
    assert all(reason.startswith("with random numbers for curvature: ") for reason in reasons)


def test_costs_of_steps_add_up_to_the_totals():
    spec = spec_of()
    replay = simulate(run_of(spec, 4), spec, changed(spec, "max", "", "actors.count=3"))
    for accounting in ("paper", "billed"):
        steps = sum(step.replayed_usd[accounting] for step in replay.steps)
        assert replay.replayed_usd[accounting] == pytest.approx(steps, abs=1e-9)
        assert replay.replayed_usd[accounting] < replay.recorded_usd[accounting]


def test_a_scheduler_that_looks_at_durations_decides_as_it_did(tmp_path):
    rng = np.random.default_rng(0)
    plain = scheduler(of=task(rounds=12, max_actors=6))
    weights = {name: rng.normal(0.0, 0.5, value.shape) for name, value in plain.weights.items()}
    usual = {
        "center": [0.5, 5.0, -20.0, 5.0, 0.13, 0.02, 0.15, 1.0],
        "scale": [0.3, 3.0, 2.0, 3.0, 0.02, 0.005, 0.02, 1.0],
    }
    saved(tmp_path, replace(plain, weights=weights, **{name: np.array(values) for name, values in usual.items()}))
    spec = spec_of(
        scaling=MinionsConfig.with_files({"name": "minions", "scheduler": str(tmp_path)}), stop={"rounds": 12}
    )
    records = run_of(spec, 12)
    assert len({record.actors for record in records}) > 1
    assert [step.replayed for step in simulate(records, spec, spec).steps] == list(records)


def test_policies_see_phases_as_measured_or_as_on_the_slots_that_were_asked_for(monkeypatch):
    seen = []
    spec = spec_of()
    records = run_of(spec, 3)
    monkeypatch.setattr(
        FixedScaling, "decide", lambda _, history, groups: seen.append(history) or ScalingDecision(6, "")
    )
    simulate(records, spec, spec)
    assert [record.phases for record in seen[-1]] == [record.phases for record in records[:2]]
    simulate(records, spec, spec, slots=64)
    expected = [modelled(record, spec.functions, 64) for record in records[:2]]
    assert [record.phases for record in seen[-1]] == expected
    for record, phases in zip(seen[-1], expected, strict=True):
        assert record.ended_s - record.started_s == pytest.approx(
            total(phases) + 0.002
        )  # made up: 3 ms, 1 of them evaluating


def test_a_deadline_that_a_run_missed_is_met_by_its_replay_with_fewer_actors():
    """Six actors in each of 20 rounds; after the first round, the replay has as many as are in time."""
    spec = spec_of(stop={"rounds": 20})
    records = run_of(spec, 20, 5)
    recorded_s = sum(record.spent_s for record in records)
    replay = simulate(records, spec, changed(spec, "", "", f"scaling.deadline_s={0.7 * recorded_s}"))
    actors = [step.replayed.actors for step in replay.steps]
    assert (actors[0], len(actors), max(actors[1:]) < 6) == (6, 20, True)
    assert replay.trained_s <= 0.7 * recorded_s
    assert "s are left until the deadline; 19 rounds with 6 take" in replay.steps[1].replayed.decisions[0].reason
    impossible = simulate(records, spec, changed(spec, "", "", f"scaling.deadline_s={0.01 * recorded_s}"))
    assert {step.replayed.actors for step in impossible.steps[1:]} == {1}
    assert impossible.trained_s > 0.01 * recorded_s


def test_a_replay_ends_where_its_env_steps_are_reached():
    spec = spec_of(stop={"env_steps": 12 * 600})
    records = run_of(spec, 12, 5)
    replay = simulate(records, spec, changed(spec, "", "", "actors.count=12"))
    assert (len(replay.steps), replay.ending) == (6, "7200 env steps sampled")
    assert simulate(records, spec, spec).ending == ""
