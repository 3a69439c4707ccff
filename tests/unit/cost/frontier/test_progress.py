"""Returns smoothed by hand, and what a run of which every duration is known takes and costs at each round."""

import dataclasses

import pytest

from marless.cost.frontier.progress import progress, smoothed_returns
from marless.jobs import prices
from marless.jobs.record import AggregationRecord, GradientRecord, PhaseSeconds
from tests.unit.cost.comparison.synthetic import record, returns, spec

OURS = prices.merged(None)


def ended(number: int, env_steps: int, mean: float | None, episodes: int = 4):
    known = None if mean is None else dataclasses.replace(returns(mean), episodes=episodes)
    return dataclasses.replace(record(number), env_steps=env_steps, returns=known)


def test_a_return_is_a_mean_over_the_episodes_of_the_window():
    rounds = [ended(0, 100, -9.0), ended(1, 200, -6.0, episodes=8), ended(2, 300, -3.0), ended(3, 400, -1.0)]
    # The window of 200 env steps holds two rounds, and is not full at the end of the first.
    assert list(smoothed_returns(rounds, 200)) == [None, -7.0, -5.0, -2.0]


def test_a_round_whose_end_lies_before_the_window_does_not_count():
    rounds = [ended(0, 100, -9.0), ended(1, 300, -6.0), ended(2, 350, -3.0)]
    assert list(smoothed_returns(rounds, 250)) == [None, -7.5, -4.5]  # 350 − 250 = 100: the first has ended there
    assert list(smoothed_returns(rounds, 251)) == [None, -7.5, -6.0]


def test_a_round_longer_than_the_window_counts_alone():
    assert list(smoothed_returns([ended(0, 100, -9.0), ended(1, 200, -6.0)], 10)) == [-9.0, -6.0]


def test_rounds_without_episodes_give_no_value_alone_and_nothing_to_others():
    rounds = [ended(0, 100, None), ended(1, 200, -6.0), ended(2, 300, None), ended(3, 400, None)]
    assert list(smoothed_returns(rounds, 200)) == [None, -6.0, -6.0, None]


def test_functions_are_modelled_and_billed_on_the_slots_whatever_the_recording_took():
    """4 actors of 2 s, and policy and critic of two agents, 1 s each: 3 s with a slot each, recorded as 10 s."""
    found = progress([record(0), record(1)], spec(), OURS, slots=64, env_steps=200, machines=False)
    assert found.functions["paper"].seconds == pytest.approx((3.0, 6.0))
    # 4 · 1 GB · 2 s + 4 · 2 GB · 1 s
    assert found.functions["paper"].usd == pytest.approx((16 * 0.0000166667, 32 * 0.0000166667))
    vcpu_gb, learner_gb = 1769 / 1024, 2048 / 1024
    work = 4 * 2 * vcpu_gb * 0.0000097222 + 4 * 1 * learner_gb * 0.0000166667 + 8 * 0.0000002
    kept = 4 * 3 * vcpu_gb * 0.0000041667 + 3 * (0.032 + 0.0168) / 3600
    assert found.functions["billed"].usd == pytest.approx((work + kept, 2 * (work + kept)))
    assert found.functions["billed"].seconds == found.functions["paper"].seconds
    assert (found.env_steps, found.returns, found.final) == ((100, 200), (-20.0, -20.0), -20.0)
    assert found.machines == {}


def test_an_interruption_in_between_costs_nothing():
    apart = dataclasses.replace(record(1), idle_s=None)
    late = dataclasses.replace(record(1), idle_s=1000.0)
    one, other = (
        progress([record(0), each], spec(), OURS, slots=64, env_steps=200, machines=False) for each in (apart, late)
    )
    assert one == other


def test_cpu_seconds_are_modelled_and_billed_where_the_job_charges_them():
    """Actors that computed for half a second of their two; learners that computed all the time."""
    slow = record(0)
    invocations = tuple(
        dataclasses.replace(each, vcpu_s=0.5) if each.function == "actor" else each for each in slow.invocations
    )
    slow = dataclasses.replace(slow, invocations=invocations)
    found = progress([slow], spec(bill={"time": "cpu"}), OURS, slots=64, env_steps=200, machines=True)
    assert found.functions["paper"].seconds == pytest.approx((1.5,))
    assert found.functions["paper"].usd == pytest.approx(((4 * 0.5 + 8) * 0.0000166667,))
    assert found.machines["c6a.large"].seconds == pytest.approx((3.0,))
    slow_ = progress([slow], spec(bill={"time": "duration"}), OURS, slots=64, env_steps=200, machines=True)
    assert slow_.functions["paper"].seconds == pytest.approx((3.0,))


@pytest.mark.parametrize(("worker", "ends_s"), [("in-process", (3.0, 5.0)), ("elsewhere", (11.0, 12.0))])
def test_an_update_does_not_wait_for_actors_of_its_own_process(worker, ends_s):
    """The learner takes 1 s of an update of 9 s; then 4 actors of the next round run for 2 s each.

    In one process the update only waits for them. So the first round takes 2 s and 1 s, and the second, whose actors
    begin with the first update and end 1 s later than that, 1 s and 1 s. Elsewhere the 8 s are the update's own.
    """
    job = spec(schedule={"name": "pipelined"})
    found = progress([pipelined(number, worker) for number in (0, 1)], job, OURS, slots=64, env_steps=9, machines=False)
    assert found.functions["paper"].seconds == pytest.approx(ends_s)


def pipelined(number: int, worker: str):
    one = record(number)
    begin_s = 1000.0 + 9.0 * number
    learner = dataclasses.replace(
        one.invocations[-1], id="learner", function="learner", worker="in-process", queued_s=begin_s, start_s=begin_s,
        end_s=begin_s + 1.0,
    )  # fmt: skip
    actors = tuple(
        dataclasses.replace(each, worker=worker, queued_s=at_s, start_s=at_s, end_s=at_s + 2.0)
        for index, each in enumerate(one.invocations[:4])
        for at_s in [begin_s - 8.0 + 2.0 * index]
    )
    inner = tuple(
        dataclasses.replace(each, start_s=begin_s, queued_s=begin_s, end_s=begin_s + 1.0, vcpu_s=1.0)
        for each in one.invocations[4:]
    )
    update_s = 1.0 if number else 9.0
    phases = PhaseSeconds(rollout=0.0 if number else 8.0, update=update_s, evaluation=0.0)
    return dataclasses.replace(
        one, invocations=(*actors, learner, *inner), phases=phases, ahead=0 if number else 4, started_s=begin_s,
        ended_s=begin_s + update_s,
    )  # fmt: skip


def test_few_slots_take_longer_and_cost_the_same_by_paper():
    found = progress([record(0)], spec(), OURS, slots=2, env_steps=200, machines=False)
    assert found.functions["paper"].seconds == pytest.approx((6.0,))  # 4 s of actors, 2 s of learners, two at a time
    assert found.functions["paper"].usd == pytest.approx((16 * 0.0000166667,))


def test_every_machine_of_the_family_is_tried_at_its_own_size():
    found = progress([record(0), record(1)], spec(), OURS, slots=64, env_steps=200, machines=True).machines
    assert list(found) == [name for name, _ in OURS.family()]
    assert found["c6a.large"].seconds == pytest.approx((6.0, 12.0))  # 2 vCPUs
    assert found["c6a.large"].usd == pytest.approx((6 * 0.0765 / 3600, 12 * 0.0765 / 3600))
    assert found["c6a.xlarge"].seconds == pytest.approx((3.0, 6.0))  # 4 vCPUs hold all
    assert found["c6a.48xlarge"].usd == pytest.approx((3 * 7.344 / 3600, 6 * 7.344 / 3600))


def test_memory_limits_how_many_run_at_once_and_a_machine_too_small_is_left_out():
    job = spec(functions={"actor": {"memory_mb": 4096}, "learner": {"memory_mb": 6144}})
    found = progress([record(0)], job, OURS, slots=64, env_steps=200, machines=True).machines
    assert "c6a.large" not in found  # 4 GB do not hold a learner
    assert found["c6a.xlarge"].seconds == pytest.approx((12.0,))  # 8 GB hold one at a time: 4 · 2 s + 4 · 1 s
    assert found["c6a.2xlarge"].seconds == pytest.approx((6.0,))  # 16 GB hold two learners: as if it had 2 vCPUs


def test_a_machine_with_fewer_vcpus_than_a_function_is_left_out():
    found = progress([record(0)], spec(functions={"actor": {"vcpus": 4}}), OURS, slots=64, env_steps=200, machines=True)
    assert next(iter(found.machines)) == "c6a.xlarge"


def test_versions_of_overlapping_rollouts_are_matched_by_their_gradients():
    job = spec(
        schedule={"name": "stellaris", "learners": 1}, actors={"count": 1, "envs": 4, "steps": 5, "episodes": "fresh"}
    )
    records = [asynchronous(number, gradients) for number, gradients in enumerate((1, 2, 1))]
    found = progress(records, job, OURS, slots=64, env_steps=300, machines=True)
    spent = found.functions["paper"]
    # One actor of 2 s and one learner of 1 s, one after another at first; then a gradient every 2 s.
    assert spent.seconds == pytest.approx((3.0, 7.0, 9.0))
    assert found.machines["c6a.large"].seconds == pytest.approx((3.0, 7.0, 9.0))


def asynchronous(number: int, gradients: int):
    one = record(number, actors=1, groups=(("agent_0",),))
    learner = dataclasses.replace(one.invocations[0], id=f"learner-{number}/0", function="learner", end_s=1001.0)
    learner = dataclasses.replace(learner, start_s=1000.0, queued_s=1000.0, vcpu_s=1.0)
    made = AggregationRecord(
        arrivals="",
        gradients=tuple(
            GradientRecord(learner=each, rollouts=(), env_steps=10, staleness=0, weight=1.0, waited_s=0.0)
            for each in range(gradients)
        ),
        because="", bound=None, sampling=0, waiting=0, learning=0, dropped=0, lost=0, refused=0,
    )  # fmt: skip
    return dataclasses.replace(one, aggregation=made, invocations=(one.invocations[0], learner))
