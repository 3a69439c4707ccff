"""Adam over stacked flat parameters, each policy with a step count, learning rate and gradient norm of its own."""

from __future__ import annotations

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.999


def clip_norm_(gradient_PD: Tensor, limit: float) -> Tensor:
    """Scale each policy's gradient to an L2 norm of at most `limit`; returns the norms before, [P]."""
    norm_P1: Tensor = torch.linalg.vector_norm(gradient_PD, dim=1, keepdim=True)
    gradient_PD.mul_((limit / (norm_P1 + 1e-6)).clamp_(max=1.0))
    return norm_P1.squeeze(1)


def step_(
    flat_PD: Tensor, gradient_PD: Tensor, first_PD: Tensor, second_PD: Tensor, count_P: Tensor, *, lr: float, eps: float
) -> None:
    """One step in place, of parameters, moments and counts (float64 [P], steps taken before).

    Source: Kingma & Ba 2015, algorithm 1, with the bias corrections of each policy's own count.
    """
    count_P += 1
    first_PD.lerp_(gradient_PD, 1 - BETA1)
    second_PD.mul_(BETA2).addcmul_(gradient_PD, gradient_PD, value=1 - BETA2)
    scale_P = (lr / (1 - BETA1**count_P)).to(flat_PD.dtype)
    correction_P = (1 - BETA2**count_P).rsqrt().to(flat_PD.dtype)
    denominator_PD = second_PD.sqrt().mul_(correction_P.unsqueeze(1)).add_(eps)
    flat_PD.sub_((first_PD / denominator_PD).mul_(scale_P.unsqueeze(1)))
