"""Value losses against numbers worked out by hand, and their gradients against autograd."""

from __future__ import annotations

import pytest
import torch

from marless.learning.algos.ppo import losses

V = torch.tensor([[[2.0, 2.0]]])
TARGET = torch.tensor([[[0.0, 3.0]]])
OLD = torch.tensor([[[1.0, 1.0]]])
HALVES = torch.full((1, 1, 2), 0.5)


@pytest.mark.parametrize(
    ("clip", "huber", "loss", "gradient"),
    [
        (None, None, (2.0 + 0.5) / 2, [1.0, -0.5]),
        # clipped value 1.5: max(2, 1.125) and max(0.5, 1.125), the second being constant
        (0.5, None, (2.0 + 1.125) / 2, [1.0, 0.0]),
        # Huber beyond 1: 1·(2 − 0.5), and 0.5 at the edge
        (None, 1.0, (1.5 + 0.5) / 2, [0.5, -0.5]),
    ],
)
def test_loss_and_gradient_by_hand(clip: float | None, huber: float | None, loss: float, gradient: list[float]) -> None:
    assert losses.value_loss(V, TARGET, HALVES, OLD, clip=clip, huber=huber).tolist() == pytest.approx([loss])
    found = losses.value_gradient(V, TARGET, HALVES, OLD, clip=clip, huber=huber)
    assert found.flatten().tolist() == pytest.approx(gradient)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("huber", [None, 0.5])
def test_gradient_is_autograds(clip: float | None, huber: float | None) -> None:
    random = torch.Generator().manual_seed(5)
    v, target, old, weight = (torch.randn(2, 3, 200, generator=random) for _ in range(4))
    v.requires_grad_()
    (expected,) = torch.autograd.grad(losses.value_loss(v, target, weight.abs(), old, clip=clip, huber=huber).sum(), v)
    found = losses.value_gradient(v.detach(), target, weight.abs(), old, clip=clip, huber=huber)
    torch.testing.assert_close(found, expected)


def test_explained_variance() -> None:
    third = torch.full((1, 1, 3), 1 / 3)
    returns = torch.tensor([[[1.0, 2.0, 3.0]]])
    # residuals 0, 0, 1 have variance 2/9; returns have 2/3
    assert losses.explained_variance(torch.tensor([[[1.0, 2.0, 2.0]]]), returns, third).item() == pytest.approx(2 / 3)
    assert losses.explained_variance(returns + 7, returns, third).item() == pytest.approx(1.0)
    assert losses.explained_variance(returns, torch.ones(1, 1, 3), third).item() == 0.0
    many, weight = torch.full((1, 1, 63), 5.3), torch.full((1, 1, 63), 1 / 63)
    assert losses.explained_variance(torch.full((1, 1, 63), 5.2), many, weight).item() == 0.0
    assert losses.explained_variance(100_000 + returns, 100_000 + returns, third).item() == pytest.approx(1.0)


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[P, K, M\]"):
        losses.value_loss(V, TARGET[0], HALVES, OLD, clip=None, huber=None)
