"""Simulated runs, and schedulers that learn from them, against numbers worked out by hand."""

from collections import Counter

import numpy as np
import pytest
import torch

from marless.core.errors import SpecError
from marless.jobs.record import PhaseSeconds
from marless_minions.features import FEATURES
from marless_minions.model import QuantityCurves, StepCost, _line, fit, synthetic, task_of
from marless_minions.scheduler import forward
from marless_minions.simulation import fixed, greedy, play, rewards, uniform
from marless_minions.training import (
    PPOSettings,
    _bump,
    _discounted,
    _Learning,
    _look,
    compare,
    score,
    train,
)
from tests.plugins.minions.made import job, model, scheduler, straight, task
from tests.unit.cost.billing.rounds import invocation, round_of
from tests.unit.jobs.test_record import RETURNS

SEED = [7]


# Rewards


def test_a_round_costs_its_seconds_and_the_end_what_is_missing():
    round_s = np.array([[10.0, 10.0, 10.0, 10.0], [20.0, 20.0, 20.0, 20.0]])
    returns = np.array([[-9.0, 3.0, 3.0, 9.0], [-7.0, 2.0, -7.0, 5.0]])
    spent = np.array([1.0, 1.0, 1.0, 3.0])
    found = rewards(round_s, returns, spent, task(target=-1.0, budget_usd=2.0))
    # run 0: never there, -7 + 1. run 1: there. run 2: was there, is not: 3 + 1. run 3: there, but overspent: 9 + 1.
    assert found == pytest.approx(np.array([[-1, -1, -1, -1], [-2 - 6, -2, -2 + 4, -2 + 10]]))
    assert rewards(round_s, returns, spent, task(target=-1.0, budget_usd=None))[1, 3] == -2.0
    assert rewards(round_s, returns, spent, task(target=2.0, budget_usd=None))[1, 1] == -2.0  # J itself is enough
    assert rewards(round_s, returns, spent, task(target=-1.0, budget_usd=1.0))[1, 1] == -2.0  # so is all of B


def test_later_rewards_count_less():
    found = _discounted(np.array([[1.0, 0.0], [2.0, 0.0], [4.0, 8.0]]), 0.5)
    assert found.tolist() == [[1 + 1 + 1, 2], [2 + 2, 4], [4, 8]]


# Simulated runs


def test_a_simulated_run_is_the_model_round_by_round():
    # 3 actors: 30 env steps; learner 1 + 3 s; round 6 s; 3·2·1 + 2 + 6 = 14 GB-s at 0.5 USD
    runs = play(model(), task(rounds=3, budget_usd=28.0), fixed(3), 2, SEED)
    assert (runs.round_s == 6.0).all()
    assert (runs.cost_usd == 7.0).all()
    assert runs.returns == pytest.approx(np.array([[0.0, 0.0], [3.0, 3.0], [6.0, 6.0]]))  # 40 per 400 env steps
    first, second, third = runs.observations[:, 0]
    assert dict(zip(FEATURES, first, strict=True)) == pytest.approx(
        dict.fromkeys(FEATURES, np.nan) | {"round": 0.0, "budget_left": 1.0}, nan_ok=True
    )
    assert second == pytest.approx([1 / 3, 0.0, 0.0, 0.0, 4.0, 2.0, 6.0, 0.75])
    assert third == pytest.approx([2 / 3, 0.3, 3.0, 0.03, 4.0, 2.0, 6.0, 0.5])
    assert runs.rewards[:, 0] == pytest.approx([-0.6, -0.6, -0.6])  # J = 0 is reached
    assert runs.objectives == pytest.approx([-1.8, -1.8])


def test_chance_is_seen_and_not_rewarded():
    noisy = model(returns=QuantityCurves(end=400.0, values=np.zeros((1, 5)), residuals=np.array([-1.0, 1.0])))
    runs = play(noisy, task(rounds=9, target=0.0, beta=0.0), fixed(3), 5, SEED)
    assert set(runs.observations[1:, :, FEATURES.index("return")].ravel().tolist()) == {-1.0, 1.0}
    assert (runs.returns == 0).all()
    assert (runs.rewards == 0).all()


def test_returns_stay_where_the_records_end():
    assert play(model(), task(rounds=30), fixed(4), 1, SEED).returns[-1] == 40.0


def test_the_longest_of_many_actors_takes_longer_than_their_mean():
    even = model(actor_s=np.linspace(0.0, 1.0, 101), learner_s=StepCost(fixed=0.0, per_step=0.0, ratios=np.ones(1)))
    for actors in (1, 4):
        runs = play(even, task(rounds=2, max_actors=4), fixed(actors), 4000, SEED)
        assert runs.round_s.mean() == pytest.approx(actors / (actors + 1), abs=0.01)  # of uniform durations
        means = runs.observations[1, :, FEATURES.index("actor_s")]
        assert means.mean() == pytest.approx(0.5, abs=0.02)
        assert (means <= runs.round_s[0]).all()


def test_chance_is_the_same_whatever_was_chosen_and_runs_take_turns():
    noisy = model(learner_s=StepCost(fixed=1.0, per_step=0.0, ratios=np.linspace(0.5, 1.5, 9)))
    one, four = (play(noisy, task(), fixed(actors), 5, SEED).round_s for actors in (1, 4))
    assert one == pytest.approx(four)
    assert len(np.unique(one)) > 5
    finals = (play(model(returns=straight(1.0, 2.0, 3.0)), task(rounds=99), fixed(4), 1, [n]) for n in range(9))
    seen = Counter(value for runs in finals for value in runs.returns[-1].round(6).tolist())
    assert seen.keys() == {1.0, 2.0, 3.0}


def test_what_a_score_says():
    runs = play(model(returns=straight(40.0, 20.0)), task(rounds=3), fixed(3), 4, SEED)
    found = score(runs, task(rounds=3, target=5.0))
    assert (found.final_return, found.cost_usd, found.wall_s, found.actors) == pytest.approx((4.5, 21.0, 18.0, 3.0))
    assert found.reached == 0.5
    assert score(runs, task(rounds=3, target=5.0, budget_usd=20.0)).reached == 0.0


# Models


def recorded(round_: int, mean: float | None, actors: int = 2, before: int = 0):
    """A round in which an actor took as many seconds as there were actors, and the learner 1 + 0.5 s per actor."""
    learner_s = 1.0 + 0.5 * actors
    return round_of(
        *(invocation("actor", 0.0, float(actors), index=n) for n in range(actors)),
        invocation("learner", 10.0, 10.0 + learner_s),
        round_=round_,
        actors=actors,
        env_steps=before + 10 * actors,
        metrics={"p": {"loss": 8.0, "approx_kl": 0.5}},
        returns=None if mean is None else type(RETURNS)(episodes=1, mean=mean, per_agent={}, standard_error=0.0),
    )


def run(means, actors=2):
    return [recorded(n, mean, actors, 10 * actors * n) for n, mean in enumerate(means)]


def test_a_model_of_recorded_runs():
    first, second = run([0.0, 4.0, 2.0, 6.0, None, 8.0, 8.0]), run([1.0] * 5, actors=4)
    found = fit([first, second], job())
    assert (found.runs, found.steps_per_actor, found.actor_gb) == (2, 10, 1.0)
    assert found.source == "2 recorded runs, 12 rounds"
    # after 0, 20, 40, 60, 100, 120 env steps: 4 and 2 come to 3, since training makes nothing worse
    at = found.returns.at(np.zeros(7, int), np.array([0.0, 20.0, 30.0, 60.0, 80.0, 100.0, 9e9]))
    assert at == pytest.approx([0.0, 3.0, 3.0, 6.0, 7.0, 8.0, 8.0], abs=0.2)  # on a grid of 256 points
    assert sorted(found.returns.residuals[:6]) == pytest.approx([-1, 0, 0, 0, 0, 1])
    assert found.actor_s.tolist() == [2.0] * 14 + [4.0] * 20
    # 20 env steps: 2 s; 40: 3 s; learners have 2 GB
    assert (found.learner_s.fixed, found.learner_s.per_step) == pytest.approx((1.0, 0.05))
    assert (found.learner_gb_s.fixed, found.learner_gb_s.per_step) == pytest.approx((2.0, 0.1))
    assert found.learner_s.ratios == pytest.approx(np.ones(12))
    assert found.loss.at(np.array([1]), np.array([50.0])) == 8.0


def test_of_rounds_of_one_size_a_learners_time_grows_in_proportion():
    found = fit([run([1.0] * 5)], job())
    assert (found.learner_s.fixed, found.learner_s.per_step) == pytest.approx((0.0, 0.1))


@pytest.mark.parametrize(
    ("values", "fixed_", "per_step"),
    [
        ([2.0, 3.0, 4.0], 1.0, 0.1),
        ([4.0, 3.0, 2.0], 3.0, 0.0),  # less work with more samples was chance
        ([0.5, 2.0, 4.0], 0.0, 165 / 1400),  # 0.5·10 + 2·20 + 4·30 over 10² + 20² + 30²
    ],
)
def test_a_line_has_no_negative_part(values, fixed_, per_step):
    found = _line(np.array([10.0, 20.0, 30.0]), np.array(values))
    assert (found.fixed, found.per_step) == pytest.approx((fixed_, per_step))
    assert found.ratios * (fixed_ + per_step * np.array([10.0, 20.0, 30.0])) == pytest.approx(np.array(values))


@pytest.mark.parametrize("records", [[], run([1.0] * 4), run([None] * 9)])
def test_too_little_to_learn_from_is_refused(records):
    with pytest.raises(SpecError, match="no 5 rounds in which episodes ended"):
        fit([records], job())


def test_records_without_actors_are_refused():
    with pytest.raises(SpecError, match="name no actor invocations"):
        fit([[round_of(round_=n, phases=PhaseSeconds(rollout=1, update=1, evaluation=0)) for n in range(5)]], job())


def test_the_task_of_a_job():
    spec = job(stop={"rounds": 10, "cost_usd": 3.0})
    assert task_of(spec, model(returns=straight(-20.0, 60.0)), 0.25, target=None, beta=0.2) == task(
        target=0.95 * 20, budget_usd=3.0, usd_per_gb_s=0.25, beta=0.2
    )
    reached = job(stop={"rounds": 10, "return": 7.0})
    assert task_of(reached, model(), 0.5, target=None, beta=0.1).target == 7.0
    assert task_of(reached, model(), 0.5, target=8.0, beta=0.1).target == 8.0


@pytest.mark.parametrize(("stop", "said"), [({"env_steps": 9}, "not set"), ({"rounds": 1}, "stop.rounds is 1:")])
def test_a_job_without_rounds_to_decide_on_is_refused(stop, said):
    with pytest.raises(SpecError, match=f"{said}.*--set stop.rounds=100"):
        synthetic(job(stop=stop))


def test_the_synthetic_model_is_as_documented():
    found = synthetic(job(stop={"rounds": 40}))
    half, whole = 0.5 * 40 * 4 * 10, 40 * 4 * 10
    runs, all_at = np.arange(3), lambda steps: found.returns.at(np.arange(3), np.full(3, steps))
    assert (all_at(0) == -100.0).all()
    assert all_at(half)[runs == 1] == pytest.approx(-5.0, abs=0.05)
    assert all_at(half * 1.4)[0] == pytest.approx(all_at(half * 0.7)[2], abs=20)
    assert (np.diff([all_at(0.7 * whole)[0], all_at(0.7 * whole)[1], all_at(0.7 * whole)[2]]) > 0).all()
    assert found.learner_s.fixed + found.learner_s.per_step * 4 * 10 == pytest.approx(1.2)


# Learning


def test_torch_and_numpy_compute_the_same_net():
    learning = _Learning(task(), _look(model(), task(), 0), 2, PPOSettings(), 0)
    x = np.random.default_rng(0).standard_normal((5, 8))
    for net in ("policy", "critic"):
        with torch.no_grad():
            assert learning._net(net, torch.from_numpy(x)).numpy() == pytest.approx(forward(learning._weights, net, x))


def test_actors_are_drawn_as_the_policy_says():
    learning = _Learning(task(), _look(model(), task(), 0), 2, PPOSettings(), 0)
    learning._weights["policy.2.bias"][:] = np.log([1.0, 2.0, 3.0, 4.0])
    learning._weights["policy.2.weight"][:] = 0.0
    drawn = learning.sampled(np.full((20_000, 8), np.nan))
    assert np.bincount(drawn, minlength=5)[1:] / len(drawn) == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.02)


def known():
    """Two kinds of runs: one reaches the return with 120 env steps, one with 320; no more is of use.

    A round takes 3 s and 1 s more per actor, and the last of 12 only costs. So the best possible is 12 + 1 actors in
    all in one kind of run and 32 + 1 in the other: 49 s and 69 s, at 0.5 a second -29.5 on average. No fixed number
    comes near: it cannot know which kind of run it is in, while the first returns tell.
    """
    rises = np.array([[0.0, 20.0, 40.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0], np.linspace(0.0, 60.0, 9)])
    of = model(returns=QuantityCurves(end=320.0, values=rises, residuals=np.zeros(1)))
    return of, task(rounds=12, max_actors=4, target=60.0, beta=0.5), -29.5


def test_a_trained_scheduler_beats_chance_and_every_fixed_number():
    of, goal, optimum = known()
    trained = train(of, goal, episodes=150, seed=1)
    found = compare(of, goal, trained, 1)
    best_fixed = max(score(play(of, goal, fixed(n), 40, SEED), goal).objective for n in range(1, 5))
    assert best_fixed == -36.0  # 3 actors: 72 s; with 2, half of the runs end 18.75 short
    best = score(play(of, goal, greedy(trained.best), 40, SEED), goal)
    assert best.objective == found["best"].objective  # this model knows no chance
    assert found["random"].objective < best_fixed
    assert best_fixed + (optimum - best_fixed) / 4 < best.objective <= optimum
    assert best.reached == 1.0
    assert found["cheapest"].cost_usd <= found["best"].cost_usd
    assert found["cheapest"].reached > 0.5


def test_training_starts_near_the_best_fixed_number():
    assert _bump(4, 3).tolist() == [-2.0, -0.5, 0.0, -0.5]
    assert _bump(50, 11)[[0, 10, 20]].tolist() == [-0.5, 0.0, -0.5]
    fresh = _Learning(task(), _look(model(), task(), 0), 3, PPOSettings(), 0).scheduler()
    assert greedy(fresh)(np.full((1, 8), np.nan)).tolist() == [3]
    of, goal, _ = known()
    started = train(of, goal, episodes=1, seed=0, settings=PPOSettings(learning_rate=0.0)).best
    assert score(play(of, goal, greedy(started), 4, SEED), goal).objective == -36.0


@pytest.mark.parametrize(("target", "actors"), [(-1.0, 1), (1e6, 4)])
def test_where_more_is_worth_nothing_it_asks_for_one_and_where_all_counts_for_all(target, actors):
    of, goal = model(), task(target=target, beta=0.1)
    trained = train(of, goal, episodes=20, seed=0)
    assert score(play(of, goal, greedy(trained.best), 5, SEED), goal).actors == pytest.approx(actors, abs=0.35)


def test_equal_seeds_give_equal_schedulers():
    noisy = synthetic(job())
    goal = task_of(job(), noisy, 0.5, target=None, beta=0.1)
    settings, threads = PPOSettings(epochs=2), torch.get_num_threads()
    first, again, other = (train(noisy, goal, episodes=12, seed=seed, settings=settings) for seed in (3, 3, 4))
    assert first.curve == again.curve != other.curve
    assert len(first.curve) == 3  # 5 + 5 + 2 runs
    for one, two in ((first.best, again.best), (first.cheapest, again.cheapest)):
        assert all((one.weights[name] == two.weights[name]).all() for name in one.weights)
    assert torch.get_num_threads() == threads


def test_a_comparison_names_its_rivals():
    goal = task(max_actors=40)
    given = scheduler(of=goal)
    trained = type("Trained", (), {"best": given, "cheapest": given})
    found = compare(model(), goal, trained, 0)
    assert list(found) == ["best", "cheapest", "fixed 1", "fixed 40", "random"]  # J = 0 is there from the start
    assert found["best"] == found["fixed 1"]
    assert found["random"].actors == pytest.approx(20.5, abs=1.5)
    assert uniform(3, [0])(np.zeros((99, 8))).max() == 3
