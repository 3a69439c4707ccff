"""Algorithms of the PPO family with another loss, and critics that train otherwise than policies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.errors import SpecError
from marless.learning.algos.learner import LearnerContext, Scope
from marless.learning.algos.ppo.algorithms import IPPO, ActorCriticConfig, IPPOConfig
from marless.learning.algos.ppo.functions import PolicyFunction, Surrogate
from marless.learning.algos.ppo.learner import PPOLearner
from tests.unit.learning.algos import rounds

GROUPS = rounds.INDEPENDENT


def learner(config: ActorCriticConfig, surrogate: Surrogate = PolicyFunction.surrogate) -> PPOLearner:
    class Function(PolicyFunction):
        pass

    class Learner(PPOLearner):
        policy_function = Function

    Function.surrogate = surrogate
    context = LearnerContext(rounds.MODEL, rounds.DISCRETE, Scope(1, (1,), "walker"), "cpu")
    made = Learner(IPPO(), config, context, critic="own")
    for group in GROUPS:
        made.load(group.policy, made.initial(group.policy, 3))
    return made


def trained(config: ActorCriticConfig, surrogate: Surrogate = PolicyFunction.surrogate) -> PPOLearner:
    made = learner(config, surrogate)
    made.update(rounds.inputs(GROUPS, [rounds.trajectory(rounds.DISCRETE, 7)], 0))
    return made


def weights(made: PPOLearner, part: str) -> dict[str, bytes]:
    return {name: data for name, data in rounds.flat(made.state("a")).items() if name.startswith(part)}


def score(log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor) -> Tensor:
    """The loss of A2C: no ratio, no setting."""
    return -(log_prob_PM * advantage_PM * weight_PM).sum(dim=1)


def test_autograd_trains_what_the_gradient_in_closed_form_trains() -> None:
    config = IPPOConfig(name="ippo")
    by_hand, by_autograd = (
        trained(config, each) for each in (PolicyFunction.surrogate, replace(PolicyFunction.surrogate, gradient=None))
    )
    for name, array in by_hand.state("a").acting.items():
        np.testing.assert_allclose(by_autograd.state("a").acting[name], array, rtol=1e-4, atol=1e-6)


def test_a_loss_without_settings_needs_none_in_the_job_file() -> None:
    config = ActorCriticConfig(name="a2c", epochs=1, minibatches=1)
    assert "clip" not in config.model_dump()
    made = learner(config, Surrogate(score))
    before = weights(made, "policy")
    output = made.update(rounds.inputs(GROUPS, [rounds.trajectory(rounds.DISCRETE, 7)], 0))
    assert weights(made, "policy") != before
    assert {"policy_loss", "approx_kl"} <= output.metrics["a"].keys()
    assert "clip_fraction" not in output.metrics["a"]


def test_settings_of_a_loss_follow_their_schedules() -> None:
    seen = []

    def loss(log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor, clip: float) -> Tensor:
        seen.append(clip)
        return score(log_prob_PM, old_PM, advantage_PM, weight_PM)

    made = learner(
        IPPOConfig(name="ippo", clip={"start": 0.4, "end": 0.0, "env_steps": 200}), Surrogate(loss, settings=("clip",))
    )
    made.update(replace(rounds.inputs(GROUPS, [rounds.trajectory(rounds.DISCRETE, 7)], 0), env_steps=100))
    assert set(seen) == {0.2}


@pytest.mark.parametrize("wrong", [lambda gradient: -gradient, lambda gradient: 2 * gradient])
def test_a_gradient_that_is_not_its_losss_is_found(wrong) -> None:
    right = PolicyFunction.surrogate
    right.check(0.2)
    with pytest.raises(AssertionError, match="not the one that autograd finds"):
        replace(right, gradient=lambda *arguments: wrong(right.gradient(*arguments))).check(0.2)


def test_critics_have_a_rate_of_their_own() -> None:
    made = learner(IPPOConfig(name="ippo", critic_lr=0.0, value_normalisation=False))
    before = {part: weights(made, part) for part in ("policy.", "critic.")}
    made.update(rounds.inputs(GROUPS, [rounds.trajectory(rounds.DISCRETE, 7)], 0))
    layers = {name for name in before["critic."] if "weight" in name or "bias" in name}
    assert layers
    assert {name: weights(made, "critic.")[name] for name in layers} == {
        name: before["critic."][name] for name in layers
    }
    assert weights(made, "policy.") != before["policy."]


def test_critics_have_epochs_and_minibatches_of_their_own() -> None:
    config = IPPOConfig(name="ippo", epochs=2, minibatches=2, critic_epochs=3, critic_minibatches=4)
    made = trained(config)
    learning = made.state("a").learning
    counts = {name: int(learning[name].reshape(-1)[0]) for name in learning if name.endswith("count")}
    assert counts == {"policy.count": 4, "critic.count": 12}


def test_policies_are_trained_alike_whatever_critics_do() -> None:
    """Both see the round's values from before the update, and epochs that they share have one order."""
    plain, other = (trained(IPPOConfig(name="ippo", critic_epochs=epochs)) for epochs in (None, 9))
    assert weights(plain, "policy.") == weights(other, "policy.")
    assert weights(plain, "critic.") != weights(other, "critic.")


def test_too_many_minibatches_of_critics_are_refused_by_their_name() -> None:
    with pytest.raises(SpecError, match=r"algorithm.critic_minibatches is 70, but a policy gets only 60 samples"):
        IPPOConfig(name="ippo", critic_minibatches=70).of_critics().check_minibatches(60, remembers=False)


def test_gradients_of_a_loss_need_no_autograd_graph_of_the_net() -> None:
    log_prob = torch.zeros(1, 3, requires_grad=True)
    arguments = torch.zeros(1, 3), torch.ones(1, 3), torch.full((1, 3), 1 / 3)
    slope = Surrogate(score).slope(log_prob, *arguments)
    assert not slope.requires_grad
    torch.testing.assert_close(slope, torch.full((1, 3), -1 / 3))
