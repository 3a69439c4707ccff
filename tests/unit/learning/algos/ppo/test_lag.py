"""Under schedule `pipelined`, rollouts are a version old: what PPO's ratios are to then."""

import numpy as np
import pytest

from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext, UpdateOutput
from marless.learning.algos.ppo.learner import LAG_RHO
from marless.learning.data.trajectory import Trajectory
from tests.unit.learning.algos import rounds

GROUPS = rounds.INDEPENDENT


def updated(log_prob: float | None, *, lags: bool, **settings: object) -> tuple[dict[str, bytes], UpdateOutput]:
    """Weights and metrics after a round whose actors recorded this log-probability for each action."""
    name = str(settings.pop("name", "ippo"))
    algorithm = registry.algorithm(name)
    config = algorithm.config_type.model_validate({"name": name, **settings})
    scope = next(each for each in scopes(algorithm, config, rounds.DISCRETE) if 1 in each.classes)
    made = algorithm.learner(config, LearnerContext(rounds.MODEL, rounds.DISCRETE, scope, "cpu", lags=lags))
    for name in made.names(GROUPS):
        made.load(name, made.initial(name, 0))
    arrays = dict(rounds.trajectory(rounds.DISCRETE, 7).arrays)
    if log_prob is not None:
        arrays["log_prob/1"] = np.full_like(arrays["log_prob/1"], log_prob)
    output = made.update(rounds.inputs(GROUPS, [Trajectory(arrays)]))
    return rounds.flat(made.state("a")), output


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_policies_learn_the_same_however_little_what_acted_did_so(name):
    """What acted with e⁻⁵⁰ has an importance of less than ρ: ratios are to the newest policy alone."""
    assert updated(-50.0, lags=True, name=name)[0] == updated(-60.0, lags=True, name=name)[0]
    assert updated(-50.0, lags=False, name=name)[0] != updated(-60.0, lags=False, name=name)[0]


def test_ratios_begin_at_1_where_the_newest_policy_is_the_reference():
    once = {"epochs": 1, "minibatches": 1}
    _, corrected = updated(-50.0, lags=True, **once)
    _, recorded = updated(-50.0, lags=False, **once)
    assert corrected.metrics["a"]["clip_fraction"] == 0
    assert abs(corrected.metrics["a"]["approx_kl"]) < 1e-6
    assert recorded.metrics["a"]["clip_fraction"] == pytest.approx(1)


def test_an_action_that_the_newest_policy_hardly_takes_counts_less():
    """μ = 1: the reference is 1/ρ, and the ratio of an untrained policy ρ divided by the number of legal actions."""
    _, output = updated(0.0, lags=True, epochs=1, minibatches=1)
    arrays = rounds.trajectory(rounds.DISCRETE, 7).arrays
    legal = arrays["mask/1"].sum(axis=-1)[:, 0][arrays["alive/1"][:, 0]]
    ratio = np.minimum(LAG_RHO / legal, 1.0)  # what has no alternative has the probability 1, of both
    assert output.metrics["a"]["clip_fraction"] == pytest.approx(np.mean(abs(ratio - 1) > 0.2), abs=1e-5)
    assert output.metrics["a"]["approx_kl"] == pytest.approx(np.mean(ratio - 1 - np.log(ratio)), rel=0.05)


def test_it_can_be_left_out_and_changes_nothing_where_rollouts_do_not_lag():
    assert updated(None, lags=True, correct_lag=False)[0] == updated(None, lags=False)[0]
    assert updated(None, lags=True)[0] != updated(None, lags=False)[0]
