"""The loss of policies: simple policy optimisation (Xie et al. 2025), a penalty in place of the clipping of PPO."""

from __future__ import annotations

from torch import Tensor


def loss(log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor, epsilon: float) -> Tensor:
    """Loss per policy, [P]: −Σ w · (ρA − |A| / (2ε) · (ρ − 1)²) with ρ = π/π_old.

    All arguments are [P policies, M samples]; the weights of a policy sum to 1.
    """
    ratio_PM = (log_prob_PM - old_PM).exp()
    penalty_PM = advantage_PM.abs() / (2 * epsilon) * (ratio_PM - 1).square()
    return -((ratio_PM * advantage_PM - penalty_PM) * weight_PM).sum(dim=1)


def gradient(log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor, epsilon: float) -> Tensor:
    """Gradient of the loss with respect to the log-probabilities, [P, M]: −w · ρ · (A − |A| / ε · (ρ − 1))."""
    ratio_PM = (log_prob_PM - old_PM).exp()
    return -weight_PM * ratio_PM * (advantage_PM - advantage_PM.abs() / epsilon * (ratio_PM - 1))
