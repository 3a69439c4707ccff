"""Regression of a critic on returns.

Shapes: [P, K, M], P critics with K outputs, M samples; `weight` sums to 1 over (K, M).
"""

from __future__ import annotations

import torch
from torch import Tensor

from marless.learning.algos.ppo.normalise import ROUNDING


def value_loss(
    value: Tensor, target: Tensor, weight: Tensor, old: Tensor, *, clip: float | None, huber: float | None
) -> Tensor:
    """Loss per critic, [P]: Σ w · max(ℓ(V − R), ℓ(V_clipped − R)), V_clipped within ± `clip` of the old value.

    ℓ(e) = e²/2, or Huber's loss, linear beyond `huber`; without `clip` it is Σ w · ℓ(V − R) alone.
    Source: Schulman et al. 2017 (reference implementation) for the clipping; Huber 1964.
    """
    _check(value, target, weight, old)
    loss = _penalty(value - target, huber)
    if clip is not None:
        loss = torch.maximum(loss, _penalty(old + (value - old).clamp(-clip, clip) - target, huber))
    return (loss * weight).sum(dim=(1, 2))


def value_gradient(
    value: Tensor, target: Tensor, weight: Tensor, old: Tensor, *, clip: float | None, huber: float | None
) -> Tensor:
    """The gradient of `value_loss` with respect to `value`, [P, K, M]."""
    _check(value, target, weight, old)
    error = value - target
    gradient = error if huber is None else error.clamp(-huber, huber)
    if clip is not None:
        # Outside the clip range the clipped value is constant: the gradient is 0 where it has the greater loss.
        moved = value - old
        clipped_error = old + moved.clamp(-clip, clip) - target
        gradient = gradient.masked_fill((moved.abs() > clip) & (clipped_error.abs() > error.abs()), 0.0)
    return gradient * weight


def explained_variance(value: Tensor, target: Tensor, weight: Tensor) -> Tensor:
    """1 − Var(R − V) / Var(R) per critic, [P]; 0 if the returns do not vary, but for rounding errors."""
    variance = _variance(target.double(), weight)
    explained = 1 - _variance(target.double() - value.double(), weight) / variance.clamp_min(1e-300)
    exact = (ROUNDING * target.double().abs().amax(dim=(1, 2))).square().clamp_min(1e-12)
    return torch.where(variance > exact, explained, 0.0).float()


def _variance(x: Tensor, weight: Tensor) -> Tensor:
    share = weight.double() / weight.double().sum(dim=(1, 2), keepdim=True).clamp_min(1e-300)
    mean = (x * share).sum(dim=(1, 2), keepdim=True)
    return ((x - mean).square() * share).sum(dim=(1, 2))


def _penalty(error: Tensor, huber: float | None) -> Tensor:
    if huber is None:
        return 0.5 * error.square()
    small = error.abs().clamp_max(huber)
    return small * (error.abs() - 0.5 * small)


def _check(value: Tensor, target: Tensor, weight: Tensor, old: Tensor) -> None:
    if value.dim() != 3 or not value.shape == target.shape == weight.shape == old.shape:
        raise ValueError(f"shapes must all be [P, K, M], got {[tuple(t.shape) for t in (value, target, weight, old)]}")
