"""Objectives as functions of a stack of nets' outputs: their gradient and their Hessian, in closed form.

Shapes: P nets, M samples, K outputs of a net. `weight` [P, M] has the coefficient of each sample: for a policy, its
weight in the mean times its advantage. A `flow` is a directional derivative along a direction in parameter space.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from marless.learning.nets.acting_heads import ILLEGAL_LOGIT


class OutputObjective(Protocol):
    """An objective Σ_m f_m(outputs of sample m, free parameters)."""

    def gradient(self) -> tuple[Tensor, Tensor | None]:
        """Gradients with respect to the outputs, [P, K, M], and to the free parameters, [P, F], if there are any."""
        ...

    def product(self, flow_PKM: Tensor, free_flow_PF: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The Hessian in outputs and free parameters, times a direction given by its two flows."""
        ...


class CategoricalScore:
    """Σ w·log π(a) of discrete actions; outputs are logits, and illegal actions have probability 0."""

    def __init__(self, output_PKM: Tensor, action_P1M: Tensor, legal_PKM: Tensor | None, weight_PM: Tensor) -> None:
        if legal_PKM is not None:
            output_PKM = output_PKM.masked_fill(~legal_PKM, ILLEGAL_LOGIT)
        # Not torch.softmax: along this dimension, its last bits depend on the number of threads.
        self._prob_PKM = torch.log_softmax(output_PKM, dim=1).exp()
        self._action_P1M = action_P1M
        self._weight_P1M = weight_PM.unsqueeze(1)
        self._weighted_PKM = self._prob_PKM * self._weight_P1M

    def gradient(self) -> tuple[Tensor, None]:
        """∂log π(a)/∂z = 1[a] − π."""
        return (-self._weighted_PKM).scatter_add_(1, self._action_P1M, self._weight_P1M), None

    def product(self, flow_PKM: Tensor, free_flow_PF: Tensor | None) -> tuple[Tensor, None]:
        """∂²log π(a)/∂z² = −(diag π − π πᵀ), for every action."""
        mean_P1M = (self._prob_PKM * flow_PKM).sum(dim=1, keepdim=True)
        return self._weighted_PKM * (mean_P1M - flow_PKM), None


class GaussianScore:
    """Σ w·log π(a) of continuous actions; outputs are means μ, the free parameters log standard deviations ℓ."""

    def __init__(self, output_PKM: Tensor, action_PKM: Tensor, log_std_PK: Tensor, weight_PM: Tensor) -> None:
        self._inverse_std_PK1 = torch.exp(-log_std_PK).unsqueeze(2)
        self._z_PKM = (action_PKM - output_PKM) * self._inverse_std_PK1
        self._weight_P1M = weight_PM.unsqueeze(1)

    def gradient(self) -> tuple[Tensor, Tensor]:
        """∂log π/∂μ = z/σ, ∂log π/∂ℓ = z² − 1, with z = (a − μ)/σ."""
        at_mean_PKM = self._weight_P1M * self._z_PKM * self._inverse_std_PK1
        return at_mean_PKM, (self._weight_P1M * (self._z_PKM.square() - 1)).sum(dim=2)

    def product(self, flow_PKM: Tensor, free_flow_PF: Tensor | None) -> tuple[Tensor, Tensor]:
        """The product, with ż = −μ̇/σ − z·ℓ̇: d(z/σ) = (ż − z·ℓ̇)/σ and d(z²) = 2z·ż."""
        assert free_flow_PF is not None  # a Gaussian's layout always has free parameters
        spread_PKM = self._z_PKM * free_flow_PF.unsqueeze(2)
        z_flow_PKM = -flow_PKM * self._inverse_std_PK1 - spread_PKM
        at_mean_PKM = self._weight_P1M * (z_flow_PKM - spread_PKM) * self._inverse_std_PK1
        return at_mean_PKM, 2 * (self._weight_P1M * self._z_PKM * z_flow_PKM).sum(dim=2)
