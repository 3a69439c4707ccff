"""Truncation of importance ratios over a group of learners, whose gradients are aggregated to one version.

Learner i has the policy π_i, and all learn from actions of μ. The ratio π/μ of a loss is replaced by R'
(Yu et al. 2024, "Stellaris", global importance sampling truncation):

    least (as printed):   R' = min( min_i π_i/μ, ρ )
    floor (their code):   R' = min( π/μ, max(ρ, min_i π_i/μ) )

i runs over all learners, the own one included. With `least`, ρ is the most that a ratio can be. With `floor`, it is the
least that the limit can be: ratios up to ρ are never truncated, and greater ones not below the least of the others.
Both are functions of log π, so that they go before any loss of ratios. Shapes: [P, M], P policies, M samples.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Truncation = Literal["none", "least", "floor"]
_ROUNDING = 1e-4
"""Ratios that are greater than their limit by this share still count as within it: an untrained policy has the ratio 1,
but for the rounding of log-probabilities, and ρ is often 1."""


def truncated(log_prob_PM: Tensor, old_PM: Tensor, least_PM: Tensor, rho: float, how: Truncation) -> Tensor:
    """log(R' · μ), which takes the place of log π in a loss.

    Args:
        log_prob_PM: log π of the actions under the learner's own policy.
        old_PM: log μ, as the actors recorded it.
        least_PM: The least log π_i of the other learners' policies; +∞ without others.
        rho: ρ.
        how: "least" or "floor".
    """
    _check(log_prob_PM, old_PM, least_PM)
    highest_PM = old_PM + math.log(rho)
    limit_PM = torch.minimum(least_PM, highest_PM) if how == "least" else torch.maximum(least_PM, highest_PM)
    return torch.minimum(log_prob_PM, limit_PM)


def gradient_through(d_truncated_PM: Tensor, log_prob_PM: Tensor, truncated_PM: Tensor) -> Tensor:
    """The loss's gradient with respect to log π, given that with respect to `truncated`: 0 where it is truncated.

    Other learners' policies are constants. Writes into its first argument.
    """
    _check(d_truncated_PM, log_prob_PM, truncated_PM)
    return d_truncated_PM.masked_fill_(_is_truncated(log_prob_PM, truncated_PM), 0.0)


def fraction(log_prob_PM: Tensor, truncated_PM: Tensor, weight_PM: Tensor) -> Tensor:
    """Share of the samples that are truncated, [P]; `weight` sums to 1 per policy."""
    _check(log_prob_PM, truncated_PM, weight_PM)
    return (_is_truncated(log_prob_PM, truncated_PM) * weight_PM).sum(dim=1)


def _is_truncated(log_prob_PM: Tensor, truncated_PM: Tensor) -> Tensor:
    return log_prob_PM - truncated_PM > _ROUNDING


def _check(first: Tensor, *others: Tensor) -> None:
    if first.dim() != 2 or any(other.shape != first.shape for other in others):
        raise ValueError(f"shapes must all be [P, M], got {[tuple(t.shape) for t in (first, *others)]}")
