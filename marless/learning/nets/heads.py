"""Log-probabilities and entropies from a policy net's outputs, with their gradients in closed form, for learners.

P policies, M samples, A actions or action components. Feature-major: outputs [P, A, M], actions [P, 1, M] (int64)
or [P, A, M].
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from marless.learning.envs.base import Box, Discrete
from marless.learning.nets import kernels
from marless.learning.nets.acting_heads import BETA, ILLEGAL_LOGIT, SQUASHED_NORMAL, STOCHASTIC
from marless.learning.nets.beta import LOG_2

_NODES = 32
_NODE_Q, _WEIGHT_Q = np.polynomial.hermite_e.hermegauss(_NODES)
_QUADRATURE = _NODE_Q, _WEIGHT_Q / _WEIGHT_Q.sum()
"""Nodes and weights of a mean over a standard normal variable (Gauss-Hermite)."""


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
        found = kernels.gaussian(output_PAM, action, self._log_std_PA)
        if found is not None:
            self._z_PAM, log_prob_PM, entropy_PM = found
            return log_prob_PM, entropy_PM
        log_std_PA1 = self._log_std_PA.unsqueeze(2)
        self._z_PAM = (action - output_PAM) * torch.exp(-log_std_PA1)
        log_prob_PM = (-0.5 * self._z_PAM.square() - log_std_PA1 - 0.5 * math.log(2 * math.pi)).sum(dim=1)
        entropy_P = (self._log_std_PA + 0.5 * math.log(2 * math.pi * math.e)).sum(dim=1)
        return log_prob_PM, entropy_P.unsqueeze(1).expand_as(log_prob_PM)

    def gradient(self, d_log_prob_PM: Tensor, d_entropy_PM: Tensor) -> Tensor:
        """∂log π(a)/∂μ = z/σ, ∂log π(a)/∂log σ = z² − 1, ∂H/∂log σ = 1."""
        given = self._z_PAM, self._log_std_PA, d_log_prob_PM, d_entropy_PM
        found = kernels.gaussian_gradient(*given, self._d_log_std_PA)
        if found is not None:
            return found
        d_log_prob_P1M = d_log_prob_PM.unsqueeze(1)
        per_sample_PAM = (self._z_PAM.square() - 1) * d_log_prob_P1M + d_entropy_PM.unsqueeze(1)
        torch.sum(per_sample_PAM, dim=2, out=self._d_log_std_PA)
        return self._z_PAM * torch.exp(-self._log_std_PA).unsqueeze(2) * d_log_prob_P1M


class SquashedGaussian(Gaussian):
    """A Gaussian whose samples u are squashed by tanh. Log-probabilities are those of u, whose ratios are the same.

    The entropy is that of tanh u: of u, and E[ln(1 − tanh² u)] = −2 E[ln cosh u], by quadrature.
    """

    def __init__(self, log_std_PA: Tensor, d_log_std_PA: Tensor) -> None:
        super().__init__(log_std_PA, d_log_std_PA)
        # Here, since a copy to a GPU in each gradient step would wait for it.
        self._node_Q, self._weight_Q = (log_std_PA.new_tensor(each) for each in _QUADRATURE)

    def evaluate(self, output_PAM: Tensor, action: Tensor, legal_PAM: Tensor | None) -> tuple[Tensor, Tensor]:
        log_prob_PM, entropy_PM = super().evaluate(output_PAM, action, legal_PAM)
        self._noise_PAMQ = self._log_std_PA.exp()[:, :, None, None] * self._node_Q
        u_PAMQ = output_PAM.unsqueeze(3) + self._noise_PAMQ
        self._tanh_PAMQ = u_PAMQ.tanh()
        # ln cosh u without an overflow of cosh.
        log_cosh_PAMQ = u_PAMQ.abs().add_(torch.nn.functional.softplus(-2 * u_PAMQ.abs())).sub_(math.log(2))
        return log_prob_PM, entropy_PM - 2 * (log_cosh_PAMQ * self._weight_Q).sum(dim=3).sum(dim=1)

    def gradient(self, d_log_prob_PM: Tensor, d_entropy_PM: Tensor) -> Tensor:
        """∂H/∂μ = −2 E[tanh u], and to ∂H/∂log σ of the Gaussian is added −2 E[(u − μ) tanh u]."""
        d_output_PAM = super().gradient(d_log_prob_PM, d_entropy_PM)
        weighted_PAMQ = self._tanh_PAMQ * self._weight_Q
        d_entropy_P1M = -2 * d_entropy_PM.unsqueeze(1)
        self._d_log_std_PA += ((weighted_PAMQ * self._noise_PAMQ).sum(dim=3) * d_entropy_P1M).sum(dim=2)
        return d_output_PAM + weighted_PAMQ.sum(dim=3) * d_entropy_P1M


class Beta:
    """Actions in (−1, 1) of Beta distributions; `marless.learning.nets.beta` says what the outputs [P, 2·A, M] mean."""

    def evaluate(self, output_PAM: Tensor, action: Tensor, legal_PAM: Tensor | None) -> tuple[Tensor, Tensor]:
        # In float64, because differences of ln Γ lose digits where α and β are large.
        self._output_PKM = output_PAM.double()
        self._shape_PKM = 1 + torch.nn.functional.softplus(self._output_PKM)
        alpha_PAM, beta_PAM = self._shape_PKM.chunk(2, dim=1)
        total_PAM = alpha_PAM + beta_PAM
        sides_PKM = torch.cat([action, -action], dim=1).double().log1p_().sub_(LOG_2)  # ln x and ln(1 − x)
        log_beta_PAM = alpha_PAM.lgamma() + beta_PAM.lgamma() - total_PAM.lgamma()
        self._digamma_total_PAM, digamma_PKM = total_PAM.digamma(), self._shape_PKM.digamma()
        self._score_PKM = sides_PKM - digamma_PKM + self._digamma_total_PAM.repeat(1, 2, 1)
        log_prob_PM = ((self._shape_PKM - 1) * sides_PKM).sum(dim=1) - (log_beta_PAM + LOG_2).sum(dim=1)
        entropy_PAM = log_beta_PAM + LOG_2 + (total_PAM - 2) * self._digamma_total_PAM
        entropy_PM = entropy_PAM.sum(dim=1) - ((self._shape_PKM - 1) * digamma_PKM).sum(dim=1)
        return log_prob_PM.float(), entropy_PM.float()

    def gradient(self, d_log_prob_PM: Tensor, d_entropy_PM: Tensor) -> Tensor:
        """∂log π/∂α = ln x − ψ(α) + ψ(α + β), ∂H/∂α = (α + β − 2) ψ′(α + β) − (α − 1) ψ′(α); likewise β, with 1 − x."""
        shape_PKM = self._shape_PKM
        total_PKM = shape_PKM + shape_PKM.roll(shape_PKM.shape[1] // 2, dims=1)
        d_entropy_PKM = (total_PKM - 2) * total_PKM.polygamma(1) - (shape_PKM - 1) * shape_PKM.polygamma(1)
        found_PKM = self._score_PKM * d_log_prob_PM.unsqueeze(1) + d_entropy_PKM * d_entropy_PM.unsqueeze(1)
        return (found_PKM * self._output_PKM.sigmoid()).float()


def head(action: Discrete | Box, flat_PD: Tensor, gradient_PD: Tensor, acts: str = STOCHASTIC) -> ActionDistribution:
    """The head for an action space; a Gaussian's log standard deviations are the last A columns of the parameters."""
    if isinstance(action, Discrete):
        return Categorical()
    if acts == BETA:
        return Beta()
    return (SquashedGaussian if acts == SQUASHED_NORMAL else Gaussian)(
        flat_PD[:, -action.n :], gradient_PD[:, -action.n :]
    )
