"""The clipped surrogate against numbers worked out by hand, and its gradient against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from marless.learning.algos.ppo import losses

QUARTERS = torch.full((1, 4), 0.25)
LOG_PROB = torch.log(torch.tensor([[1.5, 0.5, 1.5, 0.5]])) - 1.0
OLD = torch.full((1, 4), -1.0)
ADVANTAGE = torch.tensor([[1.0, 1.0, -1.0, -1.0]])


def test_surrogate_is_pessimistic_on_both_sides() -> None:
    # min(1.5, 1.2) + min(0.5, 0.8) + min(−1.5, −1.2) + min(−0.5, −0.8) = 1.2 + 0.5 − 1.5 − 0.8
    assert losses.surrogate(LOG_PROB, OLD, ADVANTAGE, QUARTERS, 0.2).tolist() == pytest.approx([0.15])


def test_surrogate_gradient_is_zero_where_clipped() -> None:
    gradient = losses.surrogate_gradient(LOG_PROB, OLD, ADVANTAGE, QUARTERS, 0.2)
    assert gradient.tolist()[0] == pytest.approx([0.0, -0.125, 0.375, 0.0])


def test_surrogate_gradient_is_autograds() -> None:
    random = torch.Generator().manual_seed(3)
    old, advantage, weight = (torch.randn(2, 500, generator=random) for _ in range(3))
    log_prob = (old + 0.3 * torch.randn(2, 500, generator=random)).requires_grad_()
    loss = losses.surrogate(log_prob, old, advantage, weight.abs(), 0.2)
    (expected,) = torch.autograd.grad(loss.sum(), log_prob)
    found = losses.surrogate_gradient(log_prob.detach(), old, advantage, weight.abs(), 0.2)
    torch.testing.assert_close(found, expected)


def test_samples_without_weight_do_not_count() -> None:
    weight = torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    assert losses.surrogate(LOG_PROB, OLD, ADVANTAGE, weight, 0.2).tolist() == pytest.approx([-0.85])
    assert losses.clip_fraction(LOG_PROB, OLD, weight, 0.6).tolist() == [0.0]


def test_how_far_a_policy_has_moved() -> None:
    log_prob = torch.tensor([[math.log(2.0), 0.0]])
    old, halves = torch.zeros(1, 2), torch.full((1, 2), 0.5)
    # ((2 − 1) − ln 2) / 2, and one ratio of two outside [0.8, 1.2]
    assert losses.approximate_kl(log_prob, old, halves).tolist() == pytest.approx([(1 - math.log(2.0)) / 2])
    assert losses.clip_fraction(log_prob, old, halves, 0.2).tolist() == [0.5]


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[P, M\]"):
        losses.surrogate(LOG_PROB, OLD, ADVANTAGE[:, :1], QUARTERS, 0.2)
