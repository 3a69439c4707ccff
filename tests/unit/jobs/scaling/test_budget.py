"""Staying within a budget, against numbers worked out by hand."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.jobs.scaling.base import ScalingDecision, within_budget
from tests.unit.jobs.scaling.rounds import record

WANTED = ScalingDecision(50, "fixed: 50 actors in every round", {"of": "the policy"})
LAST = record(3, "a", actors=50)
COST = {"actor": 0.004, "policy": 0.005, "critic": 0.0005, "post_process": 0.0005, "evaluation": 0.0015, "redis": 5e-4}


def test_as_many_actors_as_the_rounds_that_are_left_can_pay():
    # 0.08 / 10 rounds = 0.008 a round, 0.002 of it for what stays; 0.01 / 50 = 0.0002 an actor: 0.006 / 0.0002 = 30
    decision = within_budget(WANTED, last=LAST, last_usd=COST, remaining_usd=0.08, rounds_left=10)
    assert decision.actors == 30
    assert decision.reason == (
        "30 actors instead of 50: 0.080000 USD are left, for 10 rounds, and a round costs 0.000200 USD an actor and "
        "0.002000 USD besides (wanted since fixed: 50 actors in every round)"
    )
    assert decision.inputs["of"] == "the policy"
    assert decision.inputs["budget"] == pytest.approx(
        {
            "wanted": 50,
            "remaining_usd": 0.08,
            "rounds_left": 10,
            "round_usd": 0.008,
            "actor_usd": 0.0002,
            "fixed_usd": 0.002,
        }
    )


def test_a_tenth_of_what_is_left_where_the_rounds_are_not_known():
    decision = within_budget(WANTED, last=LAST, last_usd=COST, remaining_usd=0.08, rounds_left=None)
    assert (decision.actors, "a tenth of it for one round" in decision.reason) == (30, True)


@pytest.mark.parametrize("function", ["actor", "learner", "post_process", "critic", "mixer", "policy", "machine"])
def test_what_works_on_samples_grows_with_the_actors(function):
    cost = {function: 0.01, "evaluation": 0.002}
    found = within_budget(WANTED, last=LAST, last_usd=cost, remaining_usd=0.08, rounds_left=10).inputs["budget"]
    assert (found["actor_usd"], found["fixed_usd"]) == pytest.approx((0.0002, 0.002))


@pytest.mark.parametrize("function", ["learner", "post_process", "critic", "mixer", "policy"])
def test_batches_from_a_replay_do_not_grow_with_the_actors(function):
    """0.008 a round, 0.007 of it for what stays: 0.001 / 0.0002 an actor."""
    cost = {"actor": 0.01, function: 0.005, "evaluation": 0.002}
    found = within_budget(WANTED, last=LAST, last_usd=cost, remaining_usd=0.08, rounds_left=10, drawn=True)
    assert found.actors == 5
    budget = found.inputs["budget"]
    assert (budget["actor_usd"], budget["fixed_usd"]) == pytest.approx((0.0002, 0.007))


def test_what_the_budget_pays_stands():
    decision = within_budget(WANTED, last=LAST, last_usd=COST, remaining_usd=0.12, rounds_left=10)
    assert (decision.actors, decision.reason) == (50, WANTED.reason)
    assert decision.inputs["budget"]["wanted"] == 50


def test_without_a_round_to_judge_by_the_decision_stands():
    assert within_budget(WANTED, last=None, last_usd={}, remaining_usd=0.01, rounds_left=10) is WANTED
    next_to_nothing = within_budget(WANTED, last=LAST, last_usd={"actor": 1e-320}, remaining_usd=1.0, rounds_left=1)
    assert next_to_nothing.actors == 50
    free = {"evaluation": 0.3}
    assert within_budget(WANTED, last=LAST, last_usd=free, remaining_usd=0.01, rounds_left=10) is WANTED


@pytest.mark.parametrize(("remaining", "rounds"), [(0.0, 10), (-1.0, 10), (0.001, 10), (-0.5, None), (0.0, 0)])
def test_at_least_one_actor(remaining, rounds):
    decision = within_budget(WANTED, last=LAST, last_usd=COST, remaining_usd=remaining, rounds_left=rounds)
    assert decision.actors == 1


@given(
    budget=st.floats(0.001, 1.0),
    rounds=st.integers(1, 200),
    actor=st.floats(1e-6, 1e-2),
    besides=st.floats(0, 1e-3),
    wanted=st.integers(1, 100),
)
def test_a_job_that_costs_what_its_last_round_said_ends_within_its_budget(budget, rounds, actor, besides, wanted):
    decision, left, last = ScalingDecision(wanted, "r"), budget, record(0, "a", actors=7)
    cost = {"actor": 7 * actor / 2, "policy": 7 * actor / 2, "evaluation": besides}
    paid = []
    for number in range(rounds):
        found = within_budget(decision, last=last, last_usd=cost, remaining_usd=left, rounds_left=rounds - number)
        json.dumps(found.inputs, allow_nan=False)
        cost = {"actor": found.actors * actor / 2, "policy": found.actors * actor / 2, "evaluation": besides}
        last, left = record(number + 1, "a", actors=found.actors), left - sum(cost.values())
        paid.append(found.actors)
        assert 1 <= found.actors <= wanted
    if budget >= rounds * (actor + besides) * (1 + 1e-9):  # one actor a round can be paid
        assert left >= -1e-6 * budget
        if wanted > 1 and max(paid) < wanted:
            assert left < actor * rounds  # and what is left would not have paid one actor more a round
