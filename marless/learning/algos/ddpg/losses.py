"""Functions for deterministic policy gradients: differentiable actions, and actions of target policies.

Shapes: P policies, A actions or action components, M samples; feature-major, [P, A, M].
"""

from __future__ import annotations

import torch
from torch import Tensor

from marless.learning.nets.acting_heads import ILLEGAL_LOGIT


def relaxed(logits_PAM: Tensor, gumbel_PAM: Tensor, legal_PAM: Tensor | None, temperature: float) -> Tensor:
    """A sample of the Gumbel-softmax, softmax((z + g) / τ): close to one-hot for small τ, and 0 for illegal actions.

    `gumbel` is −log(−log u) for uniform u, or 0 for the softmax without noise.
    Source: Jang et al. 2017, eq. 2.
    """
    _same_shape(logits_PAM, gumbel_PAM)
    noisy_PAM = logits_PAM + gumbel_PAM
    if legal_PAM is not None:
        noisy_PAM = noisy_PAM.masked_fill(~legal_PAM, ILLEGAL_LOGIT)
    # Not torch.softmax: along this dimension, its last bits depend on the number of threads.
    return torch.log_softmax(noisy_PAM / temperature, dim=1).exp()


def relaxed_gradient(relaxed_PAM: Tensor, d_action_PAM: Tensor, temperature: float) -> Tensor:
    """The gradient with respect to the logits, y (∂L/∂y − Σ y ∂L/∂y) / τ, given that at the relaxed action y."""
    _same_shape(relaxed_PAM, d_action_PAM)
    inner_P1M = (relaxed_PAM * d_action_PAM).sum(dim=1, keepdim=True)
    return (d_action_PAM - inner_P1M).mul_(relaxed_PAM).div_(temperature)


def hardest(relaxed_PAM: Tensor) -> Tensor:
    """The one-hot vector of the largest entry. For a Gumbel-softmax sample, it is an exact sample of softmax(z)."""
    return torch.zeros_like(relaxed_PAM).scatter_(1, relaxed_PAM.argmax(dim=1, keepdim=True), 1.0)


def bounded_gradient(action_PAM: Tensor, d_action_PAM: Tensor) -> Tensor:
    """The gradient with respect to z for a = tanh z, given that at a: (1 − a²) ∂L/∂a."""
    _same_shape(action_PAM, d_action_PAM)
    return d_action_PAM - action_PAM.square() * d_action_PAM


def smoothed(action_PAM: Tensor, normal_PAM: Tensor, deviation: float, limit: float) -> Tensor:
    """Target actions with clipped noise: clip(a + clip(σ ε, −c, c), −1, 1).

    Source: Fujimoto et al. 2018, eq. 14 and algorithm 1.
    """
    _same_shape(action_PAM, normal_PAM)
    return (action_PAM + (deviation * normal_PAM).clamp_(-limit, limit)).clamp_(-1.0, 1.0)


def _same_shape(first: Tensor, second: Tensor) -> None:
    if first.dim() != 3 or first.shape != second.shape:
        raise ValueError(f"shapes must both be [P, A, M], got {tuple(first.shape)} and {tuple(second.shape)}")
