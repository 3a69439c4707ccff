"""Squashed Gaussians and Beta distributions: numbers worked out by hand, gradients, and actors that act as trained."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.learning.curvature.hessian import BetaScore
from marless.learning.envs.base import AgentClass, Box
from marless.learning.nets import beta, heads, stacked
from marless.learning.nets.acting import ActingPolicies, ActingState
from marless.learning.nets.acting_heads import BETA, SQUASHED_NORMAL
from marless.learning.nets.layout import layout_of
from tests.unit.learning.nets.acting_states import state

ARM = AgentClass("arm", ("l", "r"), 2, Box((-2.0, 0.0), (2.0, 1.0)))
GRID = np.linspace(-1, 1, 200_001)[1:-1]
TWO = math.log(math.e - 1)
"""The output o of 1 + ln(1 + eᵒ) = 2."""


def integral(y: np.ndarray, x: np.ndarray) -> float:
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum())


def evaluated(acts: str, output: Tensor, action: Tensor, log_std: float = 0.0) -> tuple[Tensor, Tensor]:
    parts = torch.full((len(output), action.shape[1]), log_std), torch.zeros(len(output), action.shape[1])
    return heads.head(Box((-1.0,) * action.shape[1], (1.0,) * action.shape[1]), *parts, acts).evaluate(
        output, action, None
    )


def test_beta_of_2_and_2() -> None:
    """6x(1 − x) is 1.5 at the middle, of half the density in y; H = ln B(2, 2) − 2ψ(2) + 2ψ(4) + ln 2 = 0.56806."""
    output_PKM = torch.full((1, 4, 1), TWO)
    log_prob_PM, entropy_PM = evaluated(BETA, output_PKM, torch.zeros(1, 2, 1))
    assert log_prob_PM.item() == pytest.approx(2 * math.log(0.75), abs=1e-6)
    assert entropy_PM.item() == pytest.approx(2 * 0.568056, abs=1e-5)
    log_prob_PM, _ = evaluated(BETA, output_PKM, torch.tensor([[[0.5], [-0.5]]]))  # 6 · 0.75 · 0.25 / 2
    assert log_prob_PM.item() == pytest.approx(2 * math.log(0.5625), abs=1e-6)


@pytest.mark.parametrize("outputs", [(0.0, 0.0), (3.0, -2.0), (-30.0, 2.0), (25.0, 40.0)])
def test_a_beta_density_sums_to_1_and_has_its_entropy(outputs: tuple[float, float]) -> None:
    output_PKM = torch.tensor(outputs).view(1, 2, 1).expand(1, 2, len(GRID))
    log_prob_PM, entropy_PM = evaluated(BETA, output_PKM, torch.tensor(GRID).view(1, 1, -1))
    log_p = log_prob_PM[0].double().numpy()
    assert integral(np.exp(log_p), GRID) == pytest.approx(1, abs=1e-3)
    assert entropy_PM[0, 0].item() == pytest.approx(integral(-np.exp(log_p) * log_p, GRID), abs=2e-3)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.1), (0.5, 1.0), (-3.0, 1.0), (1.0, 2.0)])
def test_the_entropy_of_a_squashed_gaussian_is_that_of_the_tanh(mean: float, std: float) -> None:
    _, entropy_PM = evaluated(SQUASHED_NORMAL, torch.full((1, 1, 1), mean), torch.zeros(1, 1, 1), math.log(std))
    u = np.linspace(mean - 12 * std, mean + 12 * std, 200_001)
    density_u = np.exp(-0.5 * ((u - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    # The density of a = tanh u is that of u divided by da/du = 1/cosh² u.
    log_density_a = np.log(np.maximum(density_u, 1e-300)) + 2 * np.logaddexp(u, -u) - 2 * math.log(2)
    expected = integral(-density_u * log_density_a, u)
    assert entropy_PM.item() == pytest.approx(expected, abs=3e-3)


@pytest.mark.parametrize("acts", [SQUASHED_NORMAL, BETA])
def test_gradients_are_those_that_differences_find(acts: str) -> None:
    rng = torch.Generator().manual_seed(1)
    net, action = torch.randn(2, 4 if acts == BETA else 2, 3, generator=rng), 0.9 * torch.rand(2, 2, 3, generator=rng)
    log_std, d_log_std = 0.3 * torch.randn(2, 2, generator=rng), torch.zeros(2, 2)
    at_log_prob, at_entropy = torch.randn(2, 2, 3, generator=rng)
    head = heads.head(ARM.action, log_std, d_log_std, acts)

    def objective() -> float:
        log_prob, entropy = head.evaluate(net, action, None)
        return float((log_prob.double() * at_log_prob).sum() + (entropy.double() * at_entropy).sum())

    objective()
    found = head.gradient(at_log_prob, at_entropy).clone()
    pairs = [(net, found)] if acts == BETA else [(net, found), (log_std, d_log_std.clone())]
    for tensor, gradient in pairs:
        for index in np.ndindex(*tensor.shape):
            before, step, ends = tensor[index].item(), 1e-2, []
            for sign in (1, -1):
                tensor[index] = before + sign * step
                ends.append(objective())
            tensor[index] = before
            assert gradient[index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=2e-2, abs=5e-3)


@pytest.mark.parametrize("acts", [SQUASHED_NORMAL, BETA])
def test_actors_act_as_learners_compute_also_at_the_bounds(acts: str) -> None:
    states = [state(ARM, i, acts=acts, scale=scale) for i, scale in enumerate((0.5, 1e6 if acts == BETA else 20.0))]
    if acts == SQUASHED_NORMAL:  # deviations are not scaled with the weights
        deviations = ActingState(
            {**states[1].acting, "policy.free": np.array([0.5, -1.0], np.float32)}, states[1].metadata
        )
        states[1] = deviations
    policies = ActingPolicies.from_states(ARM, states)
    obs_NBO = np.random.default_rng(3).normal(size=(2, 2000, 2)).astype(np.float32)
    action_NBA, log_prob_NB = policies.sample(obs_NBO, None, np.random.default_rng(1))
    assert (action_NBA.dtype, action_NBA.shape, log_prob_NB.dtype) == (np.float32, (2, 2000, 2), np.float32)
    assert np.isfinite(log_prob_NB).all()
    box_NBA = policies.to_env(action_NBA)
    assert (box_NBA >= [-2, 0]).all()
    assert (box_NBA <= [2, 1]).all()
    assert box_NBA[1, :, 0].max() > 1.99, "the second policy reaches the bounds"
    mean_NBA, log_std = policies.outputs(obs_NBO, None)
    np.testing.assert_array_equal(policies.greedy(obs_NBO, None), mean_NBA)
    layout = layout_of("mlp", 2, (7, 6), 4 if acts == BETA else 2, 0 if acts == BETA else 2)
    flat_PD = torch.tensor(np.stack([layout.from_arrays("policy", each.acting) for each in states]))
    ones = np.ones((2, 2000, 1), np.float32)
    features = torch.tensor(np.concatenate([obs_NBO, ones], axis=2).transpose(0, 2, 1).copy())
    output_PKM = stacked.net(layout, flat_PD, "tanh").evaluate(features)
    head = heads.head(ARM.action, flat_PD, torch.zeros_like(flat_PD), acts)
    found_PM, entropy_PM = head.evaluate(output_PKM, torch.tensor(action_NBA.transpose(0, 2, 1).copy()), None)
    np.testing.assert_allclose(found_PM, log_prob_NB, rtol=1e-4, atol=2e-3)
    assert entropy_PM.isfinite().all()
    deviation_NBA = np.broadcast_to(np.exp(log_std if log_std.ndim == 3 else log_std[:, None]), action_NBA.shape)
    np.testing.assert_allclose(((action_NBA - mean_NBA)[0] / deviation_NBA[0]).std(axis=0), 1, rtol=0.05)


def test_squashed_actions_are_the_tanh_of_what_is_recorded() -> None:
    policies = ActingPolicies.from_states(ARM, [state(ARM, i, acts=SQUASHED_NORMAL) for i in range(2)])
    recorded = np.array([[[0.5, -2.0]], [[0.0, 9.0]]], np.float32)
    expected = [[[2 * math.tanh(0.5), 0.5 + 0.5 * math.tanh(-2)]], [[0, 0.5 + 0.5 * math.tanh(9)]]]
    np.testing.assert_allclose(policies.to_env(recorded), expected, rtol=1e-6, atol=1e-7)


def test_ln_gamma() -> None:
    x = np.array([1.0, 1.5, 2.0, 7.25, 100.0, 1e4, 1e9])
    np.testing.assert_allclose(beta.log_gamma(x), [math.lgamma(each) for each in x], rtol=1e-12, atol=1e-11)


def test_the_hessian_of_a_beta_score_is_that_of_its_gradient() -> None:
    rng = torch.Generator().manual_seed(1)
    output, flow = torch.randn(2, 2, 4, 5, generator=rng)
    action, weight = 1.8 * torch.rand(2, 2, 5, generator=rng) - 0.9, torch.randn(2, 5, generator=rng)
    gradient, _ = BetaScore(output, action, weight).gradient()
    head = heads.Beta()
    head.evaluate(output, action, None)
    torch.testing.assert_close(gradient, head.gradient(weight, torch.zeros_like(weight)))
    ends = [
        BetaScore((output.double() + sign * 1e-4 * flow), action, weight).gradient()[0].double() for sign in (1, -1)
    ]
    product, _ = BetaScore(output, action, weight).product(flow, None)
    torch.testing.assert_close(product.double(), (ends[0] - ends[1]) / 2e-4, rtol=1e-2, atol=5e-3)
