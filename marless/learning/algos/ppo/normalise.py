"""Normalisation of advantages over a batch, and of returns over a run."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 2.0**-22
"""Numbers that differ by less than this share of the terms from which they were computed in float32 do not differ: it
is two of its units in the last place."""
_LEAST_STD = 1e-4


def standardise(x_PM: Tensor, weight_PM: Tensor, terms_PM: Tensor | None = None) -> Tensor:
    """x with weighted mean 0 and standard deviation 1 per policy, float32 [P, M]; `weight` sums to 1 per policy.

    0 for a policy whose x differ only by rounding errors: scaled to deviation 1, those would look like advantages.
    `terms` are the numbers whose differences x are, such as values: x is as exact as they are. Sums are in float64,
    because the mean of equal numbers in float32 is not one of them.
    """
    if x_PM.dim() != 2 or x_PM.shape != weight_PM.shape:
        raise ValueError(f"shapes must both be [P, M], got {tuple(x_PM.shape)} and {tuple(weight_PM.shape)}")
    x, weight = x_PM.double(), weight_PM.double()
    # All samples of a policy may be of dead agents: 0 divided by this is 0, where 0/0 would be NaN.
    share = weight / weight.sum(dim=1, keepdim=True).clamp_min(1e-300)
    centred = x - (x * share).sum(dim=1, keepdim=True)
    std_P1 = (centred.square() * share).sum(dim=1, keepdim=True).sqrt()
    terms = x if terms_PM is None else torch.maximum(x.abs(), terms_PM.abs())
    exact_P1 = ROUNDING * (terms.abs() * (weight > 0)).amax(dim=1, keepdim=True)
    return torch.where(std_P1 <= exact_P1, 0.0, centred / std_P1.clamp_min(1e-300)).float()  # NaN stays NaN


def batch_moments(x_PKM: Tensor, weight_PKM: Tensor) -> Tensor:
    """(Σw, Σw·x, Σw·x²) per critic output, weights scaled to sum to 1; float64 [P, K, 3].

    All 0 for a batch without weight (all of an agent's samples dead).
    """
    x, weight = x_PKM.double(), weight_PKM.double()
    total = weight.sum(dim=2, keepdim=True).clamp_min(1e-300)
    share = weight / total
    return torch.stack([share.sum(dim=2), (share * x).sum(dim=2), (share * x * x).sum(dim=2)], dim=2)


def update_moments(moments_PK3: Tensor, batch_PK3: Tensor, decay: float) -> Tensor:
    """Exponentially weighted moments after one more batch; one without weight leaves mean and deviation unchanged.

    `decay` is the weight of the old ones.
    """
    updated_PK3 = decay * moments_PK3 + (1 - decay) * batch_PK3
    return torch.where(batch_PK3[..., :1] > 0, updated_PK3, moments_PK3)


def mean_and_std(moments_PK3: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, each float64 [P, K, 1]; 0 and 1 before the first batch.

    The deviation is at least 10⁻⁴, and at least what rounding makes of equal returns, see `ROUNDING`.
    """
    total, first, second = moments_PK3.unsqueeze(2).unbind(dim=3)
    seen = total > 0
    # `where` computes both sides, so the side that is not chosen must not divide by 0.
    safe = torch.where(seen, total, torch.ones_like(total))
    mean = first / safe
    # The difference of nearly equal numbers may be rounded below 0, which has no root.
    std = (second / safe - mean.square()).clamp_min(0.0).sqrt()
    std = torch.maximum(std, (ROUNDING * mean.abs()).clamp_min(_LEAST_STD))
    return mean, torch.where(seen, std, torch.ones_like(std))
