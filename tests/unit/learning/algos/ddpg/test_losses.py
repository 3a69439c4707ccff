"""Relaxed and smoothed actions by hand, and their gradients against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.learning.algos.ddpg import heads


def _random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32).view(1, -1, 1)


def test_relaxed_actions_by_hand() -> None:
    logits, gumbel = _column(0.0, np.log(2.0), 5.0), _column(np.log(3.0), 0.0, 1.0)
    legal = _column(1, 1, 0) > 0
    torch.testing.assert_close(heads.relaxed(logits, gumbel, legal, 1.0), _column(0.6, 0.4, 0.0))
    # τ = 1/2 squares the odds: 9 to 4
    torch.testing.assert_close(heads.relaxed(logits, gumbel, legal, 0.5), _column(9 / 13, 4 / 13, 0.0))
    assert heads.hardest(_column(0.2, 0.5, 0.3)).flatten().tolist() == [0.0, 1.0, 0.0]


def test_gradients_of_relaxed_actions_by_hand() -> None:
    # y = (0.6, 0.4), ∂L/∂y = (1, −1): mean 0.2, so (0.6 · 0.8, 0.4 · −1.2) / τ
    found = heads.relaxed_gradient(_column(0.6, 0.4), _column(1.0, -1.0), 2.0)
    torch.testing.assert_close(found, _column(0.24, -0.24))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_gradients_of_relaxed_actions_are_autograds(temperature: float) -> None:
    logits, gumbel, d_action = _random(2, 4, 7), _random(2, 4, 7, seed=2), _random(2, 4, 7, seed=3)
    legal = _random(2, 4, 7, seed=4) > -0.5
    legal[:, 0] = True
    logits.requires_grad_()
    action = heads.relaxed(logits, gumbel, legal, temperature)
    (expected,) = torch.autograd.grad(action, logits, d_action)
    found = heads.relaxed_gradient(action.detach(), d_action, temperature)
    torch.testing.assert_close(found, expected)
    assert not found[~legal].any()
    assert not action[~legal].any()


def test_the_hardest_of_relaxed_actions_is_drawn_from_the_softmax() -> None:
    logits = _column(0.0, np.log(2.0), np.log(5.0)).expand(1, 3, 20_000)
    gumbel = -torch.empty(1, 3, 20_000).exponential_(generator=torch.Generator().manual_seed(0)).log()
    drawn = heads.hardest(heads.relaxed(logits, gumbel, None, 0.7)).mean(dim=2).flatten()
    torch.testing.assert_close(drawn, torch.tensor([1 / 8, 2 / 8, 5 / 8]), atol=0.01, rtol=0)


def test_gradients_of_bounded_actions() -> None:
    output, d_action = _random(2, 3, 5).requires_grad_(), _random(2, 3, 5, seed=2)
    action = torch.tanh(output)
    (expected,) = torch.autograd.grad(action, output, d_action)
    torch.testing.assert_close(heads.bounded_gradient(action.detach(), d_action), expected)


def test_inverted_gradients_vanish_only_towards_the_bound() -> None:
    action, d_action = _column(0.0, 0.8, 0.8, -1.0, -1.0), _column(1.0, 1.0, -1.0, 1.0, -2.0)
    # descent moves against the sign: (1 + a)/2 of the way lie below the action, (1 − a)/2 above
    found = heads.inverted_gradient(action, d_action)
    torch.testing.assert_close(found, _column(0.5, 0.9, -0.1, 0.0, -2.0))


def test_smoothed_actions_by_hand() -> None:
    action, noise = _column(0.0, 0.0, 0.9, -0.9, 0.9), _column(1.0, 10.0, 2.0, -10.0, -1.0)
    found = heads.smoothed(action, noise, 0.2, 0.5)
    torch.testing.assert_close(found, _column(0.2, 0.5, 1.0, -1.0, 0.7))
    assert action.flatten().tolist() == pytest.approx([0.0, 0.0, 0.9, -0.9, 0.9])


def test_entropies_by_hand() -> None:
    # u = 0: tanh′ = 1, so −log π = ε²/2 + log σ + log(2π)/2, with ε = 1, σ = e
    one = _column(1.0)
    found = heads.squashed_entropy(_column(0.0), one, one)
    assert float(found) == pytest.approx(0.5 + 1 + 0.918939)
    # u = 1: log(1 − tanh² 1) = −0.867561 more; two components add up
    both = heads.squashed_entropy(_column(0.0, 1.0), _column(1.0, 1.0), _column(1.0, 1.0))
    assert float(both) == pytest.approx(2 * (0.5 + 1 + 0.918939) - 0.867561, rel=1e-5)
    assert torch.isfinite(heads.squashed_entropy(_column(60.0, -60.0), _column(0.0, 0.0), _column(0.0, 0.0))).all()
    legal = _column(1, 1, 0) > 0
    assert float(heads.entropy(_column(0.0, np.log(3.0), 9.0), legal)) == pytest.approx(0.562335, rel=1e-5)


def test_gradients_of_entropies_are_autograds() -> None:
    logits, d_entropy = _random(2, 4, 7).requires_grad_(), _random(2, 1, 7, seed=3)
    legal = _random(2, 4, 7, seed=4) > -0.5
    legal[:, 0] = True
    (expected,) = torch.autograd.grad(heads.entropy(logits, legal), logits, d_entropy)
    torch.testing.assert_close(heads.entropy_gradient(logits.detach(), legal, d_entropy), expected)


def test_gradients_of_squashed_actions_are_autograds() -> None:
    output, noise = (3 * _random(2, 6, 50)), _random(2, 3, 50, seed=2)  # some deviations are at their limits
    d_action, d_entropy, head = _random(2, 3, 50, seed=3), _random(2, 1, 50, seed=4), heads.Squashed()
    given = output.clone().requires_grad_()
    choice = head.smooth(given, noise, None)
    assert choice.entropy is not None
    (expected,) = torch.autograd.grad([choice.action, choice.entropy], given, [d_action, d_entropy])
    head.act(output, noise, None)
    torch.testing.assert_close(head.gradient(d_action, d_entropy), expected, rtol=1e-4, atol=1e-5)
    assert not expected[:, 3:][output[:, 3:] > 2].any()


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"\[P, A, M\]"):
        heads.relaxed(_random(1, 2, 3), _random(1, 2, 4), None, 1.0)
    with pytest.raises(ValueError, match=r"\[P, A, M\]"):
        heads.smoothed(_random(2, 3), _random(2, 3), 1.0, 1.0)
