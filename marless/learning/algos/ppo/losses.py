"""The losses of PPO, their gradients in closed form, and measures of what a step changes.

Policies: the clipped surrogate, what its ratio is to, and how ratios are truncated over a group of learners whose
gradients are aggregated to one version. Learner i has the policy π_i, and all learn from actions of μ. The ratio π/μ of
a loss is replaced by R' (Yu et al. 2024, "Stellaris", global importance sampling truncation):

    least (as printed):   R' = min( min_i π_i/μ, ρ )
    floor (their code):   R' = min( π/μ, max(ρ, min_i π_i/μ) )

i runs over all learners, the own one included. With `least`, ρ is the most that a ratio can be. With `floor`, it is the
least that the limit can be: ratios up to ρ are never truncated, and greater ones not below the least of the others.
Both are functions of log π, so that they go before any loss of ratios. Shapes: [P, M], P policies, M samples; `weight`
sums to 1 per policy (0 for samples of dead agents).

Critics: regression on returns. Shapes: [P, K, M], P critics with K outputs; `weight` sums to 1 over (K, M).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from marless.learning.algos.training.advantages import ROUNDING
from marless.learning.algos.training.policy_batching import same_shape
from marless.learning.nets import kernels

Truncation = Literal["none", "least", "floor"]
_TRUNCATED = 1e-4
"""Ratios that are greater than their limit by this share still count as within it: an untrained policy has the ratio 1,
but for the rounding of log-probabilities, and ρ is often 1."""


def surrogate(log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor, clip: float) -> Tensor:
    """Loss per policy, [P]: −Σ w · min(ρA, clamp(ρ, 1 − ε, 1 + ε) A) with ρ = π/π_old.

    Source: Schulman et al. 2017, eq. 7.
    """
    same_shape("P, M", log_prob_PM, old_PM, advantage_PM, weight_PM)
    ratio_PM = (log_prob_PM - old_PM).exp()
    clipped_PM = ratio_PM.clamp(1 - clip, 1 + clip)
    return -(torch.minimum(ratio_PM * advantage_PM, clipped_PM * advantage_PM) * weight_PM).sum(dim=1)


def surrogate_gradient(
    log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor, clip: float
) -> Tensor:
    """The gradient of `surrogate` with respect to the log-probabilities, [P, M]: −w·ρ·A, or 0 where it is clipped."""
    same_shape("P, M", log_prob_PM, old_PM, advantage_PM, weight_PM)
    found_PM = kernels.surrogate_gradient(log_prob_PM, old_PM, advantage_PM, weight_PM, clip)
    if found_PM is not None:
        return found_PM
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
    same_shape("P, M", log_prob_PM, old_PM, weight_PM)
    log_ratio_PM = log_prob_PM - old_PM
    # `expm1`, because exp(x) − 1 loses its digits for the small changes that this measures.
    return ((torch.expm1(log_ratio_PM) - log_ratio_PM) * weight_PM).sum(dim=1)


def clip_fraction(log_prob_PM: Tensor, old_PM: Tensor, weight_PM: Tensor, clip: float) -> Tensor:
    """Fraction of samples whose ratio is outside [1 − ε, 1 + ε], [P]."""
    same_shape("P, M", log_prob_PM, old_PM, weight_PM)
    outside_PM = ((log_prob_PM - old_PM).exp() - 1).abs() > clip
    return (outside_PM * weight_PM).sum(dim=1)


def truncated(log_prob_PM: Tensor, old_PM: Tensor, least_PM: Tensor, rho: float, how: Truncation) -> Tensor:
    """log(R' · μ), which takes the place of log π in a loss.

    Args:
        log_prob_PM: log π of the actions under the learner's own policy.
        old_PM: log μ, as the actors recorded it.
        least_PM: The least log π_i of the other learners' policies; +∞ without others.
        rho: ρ.
        how: "least" or "floor".
    """
    same_shape("P, M", log_prob_PM, old_PM, least_PM)
    highest_PM = old_PM + math.log(rho)
    limit_PM = torch.minimum(least_PM, highest_PM) if how == "least" else torch.maximum(least_PM, highest_PM)
    return torch.minimum(log_prob_PM, limit_PM)


def through_truncation(d_truncated_PM: Tensor, log_prob_PM: Tensor, truncated_PM: Tensor) -> Tensor:
    """The loss's gradient with respect to log π, given that with respect to `truncated`: 0 where it is truncated.

    Other learners' policies are constants. Writes into its first argument.
    """
    same_shape("P, M", d_truncated_PM, log_prob_PM, truncated_PM)
    return d_truncated_PM.masked_fill_(log_prob_PM - truncated_PM > _TRUNCATED, 0.0)


def truncated_fraction(log_prob_PM: Tensor, truncated_PM: Tensor, weight_PM: Tensor) -> Tensor:
    """Share of the samples that are truncated, [P]; `weight` sums to 1 per policy."""
    same_shape("P, M", log_prob_PM, truncated_PM, weight_PM)
    return ((log_prob_PM - truncated_PM > _TRUNCATED) * weight_PM).sum(dim=1)


def value_loss(
    value: Tensor, target: Tensor, weight: Tensor, old: Tensor, *, clip: float | None, huber: float | None
) -> Tensor:
    """Loss per critic, [P]: Σ w · max(ℓ(V − R), ℓ(V_clipped − R)), V_clipped within ± `clip` of the old value.

    ℓ(e) = e²/2, or Huber's loss, linear beyond `huber`; without `clip` it is Σ w · ℓ(V − R) alone.
    Source: Schulman et al. 2017 (reference implementation) for the clipping; Huber 1964.
    """
    same_shape("P, K, M", value, target, weight, old)
    loss = _penalty(value - target, huber)
    if clip is not None:
        loss = torch.maximum(loss, _penalty(old + (value - old).clamp(-clip, clip) - target, huber))
    return (loss * weight).sum(dim=(1, 2))


def value_gradient(
    value: Tensor, target: Tensor, weight: Tensor, old: Tensor, *, clip: float | None, huber: float | None
) -> Tensor:
    """The gradient of `value_loss` with respect to `value`, [P, K, M]."""
    same_shape("P, K, M", value, target, weight, old)
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
