"""Hessian-vector products of nets of any kind, by differentiating autograd's gradient of the kind's definition.

Not written by hand as for perceptrons, because a recurrence would need every derivative twice. A product takes about
twice the time of a gradient; it is computed for few samples, in a few Lanczos steps per round.
Shapes: P nets, D parameters, I inputs + 1, H units, K outputs, F free parameters, T steps, B copies, M = T·B samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from marless.learning.curvature.lanczos import Product
from marless.learning.curvature.outputs import OutputObjective
from marless.learning.curvature.perceptron import HessianProduct
from marless.learning.nets.layout import Layout, NetLayout
from marless.learning.nets.stacked import Net
from marless.learning.nets.unrolled import outputs, pulled_back

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
