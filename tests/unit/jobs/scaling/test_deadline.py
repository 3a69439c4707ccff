"""Ending by a deadline: against numbers worked out by hand, and on runs that go as their rounds foretell."""

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from marless.jobs.record import PhaseSeconds
from marless.jobs.scaling.base import ScalingDecision
from marless.jobs.scaling.deadline import SPARE, WINDOW, Deadline
from marless.jobs.scaling.round_times import RoundForecast, newest_times
from marless.jobs.sections import ActorsSpec
from tests.unit.jobs.scaling.timed import timed

STEPS = 100
"""Env steps of an actor."""
# 1 s of acting, an update of 0.5 s and 0.1 s an actor, and 0.25 s besides: 1.75 + 0.1 n s a round
ROUND = timed(3, [1.0] * 10, fixed_s=0.5, learning_s=1.0, rest_s=0.25)


def wanted(actors):
    return ScalingDecision(actors, "the policy says so", {"of": "the policy"})


def deadline(left_s, *, rounds=None, env_steps=None, times=None, most=50, drawn=False, evaluation_s=0.0):
    return Deadline.of(
        newest_times([ROUND], WINDOW) if times is None else times,
        deadline_s=100.0,
        trained_s=100.0 - left_s,
        evaluation_s=evaluation_s,
        rounds_left=rounds,
        steps_left=env_steps,
        actors=ActorsSpec(count=most, envs=4, steps=STEPS // 4),
        drawn=drawn,
    )


def test_a_round_takes_longer_with_more_actors():
    forecast = deadline(50.0, rounds=10).forecast
    assert [forecast.seconds(n) for n in (1, 10, 20)] == pytest.approx([1.85, 2.75, 3.75])
    drawn = deadline(50.0, rounds=10, drawn=True).forecast
    assert drawn.seconds(1) == drawn.seconds(50) == pytest.approx(2.75)


def test_env_steps_are_reached_sooner_with_more_actors():
    # 10,000 steps: with 5 actors 20 rounds of 2.25 s, 45 s; with 7 15 · 2.45 = 36.75; with 8 13 · 2.55 = 33.15
    found = deadline(39.2, env_steps=10_000).limit(wanted(5))  # 5 s are kept
    assert found.actors == 8
    assert found.reason == (
        "8 actors instead of 5: 39.2 s are left until the deadline; 20 rounds with 5 take 45.0 s, 13 rounds with 8 "
        f"actors take {found.inputs['deadline']['seconds']:.1f} s (wanted since the policy says so)"
    )
    assert found.inputs["of"] == "the policy"
    assert found.inputs["deadline"] == pytest.approx(
        {
            "wanted": 5, "deadline_s": 100.0, "left_s": 39.2, "kept_s": 5.0,
            "wanted_s": 45.0, "seconds": 33.15, "rounds": 13,
        }
    )  # fmt: skip


def test_rounds_are_done_sooner_with_fewer_actors():
    # 10 rounds of 1.75 + 0.1 n s in 28.5 s: at most 11 actors
    found = deadline(33.5, rounds=10).limit(wanted(20))
    assert (found.actors, found.reason.startswith("11 actors instead of 20: 33.5 s are left")) == (11, True)


def test_of_both_rules_the_one_that_ends_the_run_first_counts():
    # 2,000 steps are two rounds of 10 actors, and the ten rounds are never done
    both = deadline(33.5, rounds=10, env_steps=2_000)
    assert (both.rounds(10), both.rounds(1)) == (2, 10)
    assert both.limit(wanted(10)).actors == 10


def test_what_is_in_time_stands():
    found = deadline(60.0, rounds=10).limit(wanted(20))
    assert (found.actors, found.reason) == (20, "the policy says so")
    assert found.inputs["deadline"]["seconds"] == pytest.approx(37.5)


def test_if_nothing_is_in_time_the_quickest_is_taken_and_said():
    for left_s in (10.0, 0.0, -5.0):
        found = deadline(left_s, rounds=10).limit(wanted(20))
        assert found.actors == 1
        assert "no number of actors is in time; 10 rounds with 1 actors take 18.5 s, the least of all" in found.reason
    assert deadline(3.0, env_steps=100_000).limit(wanted(3)).actors == 50


def test_the_budget_goes_before_the_deadline_and_the_delay_is_said():
    due = deadline(36.0, env_steps=10_000)
    late = due.missed(ScalingDecision(5, "5 actors instead of 8: money"))
    assert late.reason == (
        "5 actors instead of 8: money; the budget goes before the deadline, which the run will miss by about 9.0 s"
    )
    in_time = ScalingDecision(9, "9 actors instead of 12: money")
    assert due.missed(in_time) is in_time


def test_before_a_job_begins_it_is_said_which_numbers_are_in_time():
    # 10 rounds of 1.75 + 0.1 n s in 28.5 s
    assert deadline(33.5, rounds=10).outlook() == (
        "deadline of 100 s: 1 to 11 of 50 actors are in time: 18.5 s with 1 in each round, 28.5 s with 11"
    )
    assert deadline(20.0, rounds=10).outlook() == (
        "deadline of 100 s: no number of actors up to 50 is in time; 1 are the quickest, with 18.5 s"
    )


def test_actors_that_had_to_wait_for_a_slot_run_one_after_another():
    # six actors on two slots took three turns of 1 s
    times = newest_times([timed(0, [1.0] * 6, slots=2, fixed_s=0.5)], WINDOW)
    forecast = RoundForecast.of(times, drawn=True)
    assert [forecast.seconds(n) for n in (1, 2, 3, 6, 7)] == pytest.approx([1.5, 1.5, 2.5, 3.5, 4.5])


def test_time_is_kept_for_the_evaluation_at_the_end():
    assert deadline(40.0, rounds=5, evaluation_s=4.0).kept_s == pytest.approx(4.0 + SPARE * 100)


def test_a_rollout_beside_an_update_adds_nothing_unless_it_is_longer():
    # the round began when its 2 s of acting were over; of ten actors, its update took 0.5 + 1 s
    done = timed(1, [2.0] * 10, fixed_s=0.5, learning_s=1.0)
    ahead = replace(done, started_s=1002.0, phases=PhaseSeconds(rollout=0.0, update=1.5, evaluation=0.0))
    forecast = RoundForecast.of(newest_times([ahead], WINDOW))
    assert [forecast.seconds(n) for n in (1, 10, 15, 20)] == pytest.approx([2.0, 2.0, 2.0, 2.5])


def test_starts_of_workers_come_once():
    cold = newest_times([timed(0, [1.0] * 10, fixed_s=0.5, cold_s=9.0)], WINDOW)
    assert RoundForecast.of(cold).seconds(10) == pytest.approx(1.5)


@given(
    acting=st.floats(0.01, 5.0),
    fixed=st.floats(0.0, 2.0),
    growing=st.floats(0.001, 0.5),
    wanted_actors=st.integers(1, 30),
    by_rounds=st.booleans(),
    amount=st.integers(1, 60),
    slack=st.floats(1.0, 3.0),
)
def test_a_run_that_can_be_in_time_is(acting, fixed, growing, wanted_actors, by_rounds, amount, slack):
    """Rounds that take what the first one said; the deadline is what the quickest number needs, and some more."""
    most, spent_s, history = 30, 0.0, []
    steps = amount * 10 * STEPS

    def round_s(n):
        return acting + fixed + growing * n

    def run_s(n):
        return (amount if by_rounds else -(-steps // (n * STEPS))) * round_s(n)

    # The first round has as many as the policy wants, before anything is known; 5 % are kept.
    deadline_s = slack * (round_s(wanted_actors) + min(map(run_s, range(1, most + 1)))) / (1 - SPARE)
    done_steps = done_rounds = 0
    decision, actors = ScalingDecision(wanted_actors, "r"), wanted_actors
    while (done_rounds < amount) if by_rounds else (done_steps < steps):
        if history:
            due = Deadline.of(
                newest_times(history, WINDOW),
                deadline_s=deadline_s,
                trained_s=spent_s,
                evaluation_s=0.0,
                rounds_left=amount - done_rounds if by_rounds else None,
                steps_left=None if by_rounds else steps - done_steps,
                actors=ActorsSpec(count=most, envs=4, steps=STEPS // 4),
                drawn=False,
            )
            found = due.limit(decision)
            json.dumps(found.inputs, allow_nan=False)
            assert found.reason.isprintable()
            actors = found.actors
        assert 1 <= actors <= most
        history.append(timed(done_rounds, [acting] * actors, fixed_s=fixed, learning_s=growing * actors, start_s=0.0))
        spent_s += round_s(actors)
        done_rounds, done_steps = done_rounds + 1, done_steps + actors * STEPS
    assert spent_s <= deadline_s * (1 + 1e-6)


@given(st.floats(-50.0, 200.0), st.integers(1, 50), st.integers(1, 40), st.integers(1, 30_000))
def test_the_nearest_number_that_is_in_time(left_s, asked, rounds, env_steps):
    due = deadline(left_s, rounds=rounds, env_steps=env_steps)
    found = due.limit(wanted(asked)).actors
    timely = [n for n in range(1, 51) if due.seconds(n) <= due.left_s - due.kept_s]
    assume(timely)
    assert found in timely
    assert abs(found - asked) == min(abs(n - asked) for n in timely)
