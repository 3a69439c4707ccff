"""Objectives as functions of a stack of nets' outputs: their gradient and their Hessian, in closed form.

Shapes: P nets, M samples, K outputs of a net. `weight` [P, M] has the coefficient of each sample: for a policy, its
weight in the mean times its advantage. A `flow` is a directional derivative along a direction in parameter space.

Hessian-vector products of nets of any kind, by differentiating autograd's gradient of the kind's definition.

Not written by hand as for perceptrons, because a recurrence would need every derivative twice. A product takes about
twice the time of a gradient; it is computed for few samples, in a few Lanczos steps per round.
Shapes: P nets, D parameters, I inputs + 1, H units, K outputs, F free parameters, T steps, B copies, M = T·B samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from marless.learning.curvature.lanczos import Product
from marless.learning.curvature.perceptron import HessianProduct
from marless.learning.nets import actions
from marless.learning.nets.layout import Layout, NetLayout
from marless.learning.nets.stacked import Net
from marless.learning.nets.unrolled import outputs, pulled_back


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
            output_PKM = output_PKM.masked_fill(~legal_PKM, actions.ILLEGAL_LOGIT)
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


Objective = Callable[[Tensor], OutputObjective]
"""Makes the objective from the outputs [P, K, M]."""


def hessian_product(net: Net, flat_PD: Tensor, batch: Mapping[str, Tensor], objective: Objective) -> Product:
    """Products of vectors with the Hessian of an objective of a net's outputs, at the present parameters.

    The batch has the inputs as "features" and, for a recurrent net, "resets" and perhaps "memory", as in `Net`; raises
    ValueError if the resets are missing.
    """
    layout = net.layout
    if isinstance(layout, Layout):
        return HessianProduct(layout, flat_PD, net.activation, batch["features"], objective)
    inputs = batch["features"], batch.get("resets"), batch.get("memory")
    return MemoryProduct(layout, flat_PD, net.activation, inputs, objective)


class MemoryProduct:
    """Computes what `HessianProduct` does, for nets of any kind.

    With outputs o(θ), objective f(o), u = f'(o) held fixed and J = ∂o/∂θ, the Hessian times v is
    (∂²(u·o)/∂θ²) v + Jᵀ f″(o) J v: one double backward pass for the first term and J v, and one backward pass for the
    second.
    """

    def __init__(
        self,
        layout: NetLayout,
        flat_PD: Tensor,
        activation: str,
        inputs: tuple[Tensor, Tensor | None, Tensor | None],
        objective: Objective,
    ) -> None:
        self._free = layout.free
        self._flat_PD = flat_PD.detach().clone().requires_grad_()
        self._output_PKM = outputs(layout, self._flat_PD, activation, *inputs)
        self._objective = objective(self._output_PKM.detach())
        at_output_PKM, _ = self._objective.gradient()
        self._tilt_PKM = torch.zeros_like(at_output_PKM).requires_grad_()
        """A zero added to u: the derivative of Jᵀ(u + tilt) · v with respect to tilt is J v."""
        (self._gradient_PD,) = pulled_back(
            at_output_PKM + self._tilt_PKM, self._output_PKM, self._flat_PD, create_graph=True
        )

    def __call__(self, direction_PD: Tensor) -> Tensor:
        """The product with each net's direction, [P, D]."""
        along = (self._gradient_PD * direction_PD).sum()
        bent_PD, flow_PKM = torch.autograd.grad(along, (self._flat_PD, self._tilt_PKM), retain_graph=True)
        free = self._free
        at_output_PKM, at_free_PF = self._objective.product(flow_PKM, direction_PD[:, -free:] if free else None)
        (through_PD,) = pulled_back(at_output_PKM, self._output_PKM, self._flat_PD, retain_graph=True)
        product_PD = bent_PD + through_PD
        if at_free_PF is not None:
            product_PD[:, -free:] = at_free_PF
        return product_PD
