"""The clipped surrogate loss of proximal policy optimisation, what its ratio is to, and measures of the policy change.

Shapes: [P, M], P policies, M samples; `weight` sums to 1 per policy (0 for samples of dead agents).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def surrogate(log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor, clip: float) -> Tensor:
    """Loss per policy, [P]: −Σ w · min(ρA, clamp(ρ, 1 − ε, 1 + ε) A) with ρ = π/π_old.

    Source: Schulman et al. 2017, eq. 7.
    """
    _same_shape(log_prob_PM, old_PM, advantage_PM, weight_PM)
    ratio_PM = (log_prob_PM - old_PM).exp()
    clipped_PM = ratio_PM.clamp(1 - clip, 1 + clip)
    return -(torch.minimum(ratio_PM * advantage_PM, clipped_PM * advantage_PM) * weight_PM).sum(dim=1)


def surrogate_gradient(
    log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor, clip: float
) -> Tensor:
    """The gradient of `surrogate` with respect to the log-probabilities, [P, M]: −w·ρ·A, or 0 where it is clipped."""
    _same_shape(log_prob_PM, old_PM, advantage_PM, weight_PM)
    ratio_PM = (log_prob_PM - old_PM).exp_()
    # min(ρA, clamp(ρ)A) is the second, and so constant, exactly where (ρ − clamp(ρ))·A is positive.
    excess_PM = (ratio_PM - ratio_PM.clamp(1 - clip, 1 + clip)).mul_(advantage_PM)
    return ratio_PM.mul_(advantage_PM).mul_(weight_PM).neg_().masked_fill_(excess_PM > 0, 0.0)


def impact_reference(target: Tensor, old: Tensor, rho: float) -> Tensor:
    """log max(π_t, μ/ρ) for target policies π_t and acting ones μ, of log-probabilities of any one shape.

    π divided by it is min(μ/π_t, ρ) · π/μ, so that the clipped surrogate with it in the place of μ is that of IMPACT.
    Source: Luo et al. 2020, §3.1.
    """
    if target.shape != old.shape:
        raise ValueError(f"shapes must be equal, got {tuple(target.shape)} and {tuple(old.shape)}")
    return torch.maximum(target, old - math.log(rho))


def approximate_kl(log_prob_PM: Tensor, old_PM: Tensor, weight_PM: Tensor) -> Tensor:
    """KL(π_old ‖ π) per policy, [P], estimated as the mean of (ρ − 1) − log ρ: unbiased and never negative.

    Source: Schulman 2020, "Approximating KL divergence", estimator k3.
    """
    _same_shape(log_prob_PM, old_PM, weight_PM)
    log_ratio_PM = log_prob_PM - old_PM
    # `expm1`, because exp(x) − 1 loses its digits for the small changes that this measures.
    return ((torch.expm1(log_ratio_PM) - log_ratio_PM) * weight_PM).sum(dim=1)


def clip_fraction(log_prob_PM: Tensor, old_PM: Tensor, weight_PM: Tensor, clip: float) -> Tensor:
    """Fraction of samples whose ratio is outside [1 − ε, 1 + ε], [P]."""
    _same_shape(log_prob_PM, old_PM, weight_PM)
    outside_PM = ((log_prob_PM - old_PM).exp() - 1).abs() > clip
    return (outside_PM * weight_PM).sum(dim=1)


def _same_shape(first: Tensor, *others: Tensor) -> None:
    if first.dim() != 2 or any(other.shape != first.shape for other in others):
        raise ValueError(f"shapes must all be [P, M], got {[tuple(t.shape) for t in (first, *others)]}")
