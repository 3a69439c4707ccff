"""Log-probabilities and entropies from a policy net's outputs, with their gradients in closed form, for learners.

P policies, M samples, A actions or action components. Feature-major: outputs [P, A, M], actions [P, 1, M] (int64)
or [P, A, M].
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from marless.learning.envs.base import Box, Discrete
from marless.learning.nets import kernels
from marless.learning.nets.acting_heads import ILLEGAL_LOGIT


class ActionDistribution(Protocol):
    """An action distribution, for training. `gradient` refers to the last call of `evaluate`."""

    def evaluate(self, output_PAM: Tensor, action: Tensor, legal_PAM: Tensor | None) -> tuple[Tensor, Tensor]:
        """Log-probability of the actions taken and entropy, each [P, M]."""

    def gradient(self, d_log_prob_PM: Tensor, d_entropy_PM: Tensor) -> Tensor:
        """The gradient with respect to the outputs, given those with respect to the last results of `evaluate`."""


class Categorical:
    """Discrete actions: outputs are logits; illegal actions have probability 0."""

    def evaluate(self, output_PAM: Tensor, action: Tensor, legal_PAM: Tensor | None) -> tuple[Tensor, Tensor]:
        self._action_P1M = action
        found = kernels.categorical(output_PAM, action, legal_PAM, ILLEGAL_LOGIT)
        if found is not None:
            self._log_PAM, self._prob_PAM, log_prob_PM, self._entropy_PM = found
            return log_prob_PM, self._entropy_PM
        if legal_PAM is not None:
            output_PAM = output_PAM.masked_fill(~legal_PAM, ILLEGAL_LOGIT)
        self._log_PAM = torch.log_softmax(output_PAM, dim=1)
        self._prob_PAM = self._log_PAM.exp()
        self._entropy_PM = -(self._prob_PAM * self._log_PAM).sum(dim=1)
        return self._log_PAM.gather(1, action).squeeze(1), self._entropy_PM

    def gradient(self, d_log_prob_PM: Tensor, d_entropy_PM: Tensor) -> Tensor:
        """∂log π(a)/∂z = 1[a] − π and ∂H/∂z = −π (log π + H)."""
        state = self._log_PAM, self._prob_PAM, self._entropy_PM, self._action_P1M
        found = kernels.categorical_gradient(*state, d_log_prob_PM, d_entropy_PM)
        if found is not None:
            return found
        d_log_prob_P1M, d_entropy_P1M = d_log_prob_PM.unsqueeze(1), d_entropy_PM.unsqueeze(1)
        # In place, because `evaluate` makes these arrays anew for each minibatch and nothing reads them afterwards.
        inner = self._log_PAM.add_(self._entropy_PM.unsqueeze(1)).mul_(d_entropy_P1M).add_(d_log_prob_P1M)
        return inner.mul_(self._prob_PAM).neg_().scatter_add_(1, self._action_P1M, d_log_prob_P1M)


class Gaussian:
    """Continuous actions: outputs are means, `log_std_PA` are parameters, whose gradient goes to `d_log_std_PA`."""

    def __init__(self, log_std_PA: Tensor, d_log_std_PA: Tensor) -> None:
        self._log_std_PA = log_std_PA
        self._d_log_std_PA = d_log_std_PA

    def evaluate(self, output_PAM: Tensor, action: Tensor, legal_PAM: Tensor | None) -> tuple[Tensor, Tensor]:
        """See `ActionDistribution`; `legal_PAM` is None for continuous actions."""
        log_std_PA1 = self._log_std_PA.unsqueeze(2)
        self._inverse_std_PA1 = torch.exp(-log_std_PA1)
        self._z_PAM = (action - output_PAM) * self._inverse_std_PA1
        log_prob_PM = (-0.5 * self._z_PAM.square() - log_std_PA1 - 0.5 * math.log(2 * math.pi)).sum(dim=1)
        entropy_P = (self._log_std_PA + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=1)
        return log_prob_PM, entropy_P.unsqueeze(1).expand_as(log_prob_PM)

    def gradient(self, d_log_prob_PM: Tensor, d_entropy_PM: Tensor) -> Tensor:
        """∂log π(a)/∂μ = z/σ, ∂log π(a)/∂log σ = z² − 1, ∂H/∂log σ = 1."""
        d_log_prob_P1M = d_log_prob_PM.unsqueeze(1)
        per_sample_PAM = (self._z_PAM.square() - 1) * d_log_prob_P1M + d_entropy_PM.unsqueeze(1)
        torch.sum(per_sample_PAM, dim=2, out=self._d_log_std_PA)
        return self._z_PAM * self._inverse_std_PA1 * d_log_prob_P1M


def head(action: Discrete | Box, flat_PD: Tensor, gradient_PD: Tensor) -> ActionDistribution:
    """The head for an action space; a Gaussian's log standard deviations are the last A columns of the parameters."""
    if isinstance(action, Discrete):
        return Categorical()
    return Gaussian(flat_PD[:, -action.n :], gradient_PD[:, -action.n :])
