"""Normalisation of advantages over a batch, and of returns over a run."""

from __future__ import annotations

import torch
from torch import Tensor


def standardise(x_PM: Tensor, weight_PM: Tensor) -> Tensor:
    """x with weighted mean 0 and standard deviation 1 per policy; `weight` sums to 1 per policy. [P, M]."""
    if x_PM.dim() != 2 or x_PM.shape != weight_PM.shape:
        raise ValueError(f"shapes must both be [P, M], got {tuple(x_PM.shape)} and {tuple(weight_PM.shape)}")
    centred_PM = x_PM - (x_PM * weight_PM).sum(dim=1, keepdim=True)
    variance_P1 = (centred_PM.square() * weight_PM).sum(dim=1, keepdim=True)
    return centred_PM / (variance_P1.sqrt() + 1e-8)


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
    """Mean and standard deviation, each float64 [P, K, 1]; 0 and 1 before the first batch."""
    total, first, second = moments_PK3.unsqueeze(2).unbind(dim=3)
    seen = total > 0
    safe = torch.where(seen, total, torch.ones_like(total))
    mean = first / safe
    std = (second / safe - mean.square()).clamp_min(0.0).sqrt().clamp_min(1e-4)
    return mean, torch.where(seen, std, torch.ones_like(std))
