"""Hessian-vector products of recurrent nets, by differentiating autograd's gradient through a copy of the net.

Not written by hand as for perceptrons, because the recurrence would need every derivative twice. A product takes about
twice the time of a gradient; it is computed for few samples, in a few Lanczos steps per round.
Shapes: P nets, D parameters, I inputs + 1, H units, K outputs, F free parameters, T steps, B copies, M = T·B samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from marless.curvature.lanczos import Product
from marless.curvature.outputs import OutputObjective
from marless.curvature.perceptron import HessianProduct
from marless.nets.activations import activation as activation_of
from marless.nets.layout import GATES, GRULayout, Layout
from marless.nets.stacked import Net, matrices

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
    if "resets" not in batch:
        raise ValueError("the Hessian of a net with memory depends on where it forgets: resets are missing")
    inputs = batch["features"], batch["resets"], batch.get("memory")
    return MemoryProduct(layout, flat_PD, net.activation, inputs, objective)


class MemoryProduct:
    """As `HessianProduct`, for recurrent nets.

    With outputs o(θ), objective f(o), u = f'(o) held fixed and J = ∂o/∂θ, the Hessian times v is
    (∂²(u·o)/∂θ²) v + Jᵀ f″(o) J v: one double backward pass for the first term and J v, and one backward pass for the
    second.
    """

    def __init__(
        self,
        layout: GRULayout,
        flat_PD: Tensor,
        activation: str,
        inputs: tuple[Tensor, Tensor, Tensor | None],
        objective: Objective,
    ) -> None:
        self._free = layout.free
        self._flat_PD = flat_PD.detach().clone().requires_grad_()
        self._output_PKM = outputs(layout, self._flat_PD, activation, *inputs)
        self._objective = objective(self._output_PKM.detach())
        at_output_PKM, _ = self._objective.gradient()
        self._tilt_PKM = torch.zeros_like(at_output_PKM).requires_grad_()
        """A zero added to u: the derivative of Jᵀ(u + tilt) · v with respect to tilt is J v."""
        (self._gradient_PD,) = torch.autograd.grad(
            self._output_PKM, self._flat_PD, at_output_PKM + self._tilt_PKM, create_graph=True
        )

    def __call__(self, direction_PD: Tensor) -> Tensor:
        """The product with each net's direction, [P, D]."""
        along = (self._gradient_PD * direction_PD).sum()
        bent_PD, flow_PKM = torch.autograd.grad(along, (self._flat_PD, self._tilt_PKM), retain_graph=True)
        free = self._free
        at_output_PKM, at_free_PF = self._objective.product(flow_PKM, direction_PD[:, -free:] if free else None)
        (through_PD,) = torch.autograd.grad(self._output_PKM, self._flat_PD, at_output_PKM, retain_graph=True)
        product_PD = bent_PD + through_PD
        if at_free_PF is not None:
            product_PD[:, -free:] = at_free_PF
        return product_PD


def outputs(
    layout: GRULayout, flat_PD: Tensor, activation: str, input_PIM: Tensor, resets: Tensor, memory: Tensor | None
) -> Tensor:
    """Outputs [P, K, M] as those of `StackedGRU`, computed with operations that autograd can differentiate."""
    *body, memory_PGH, output_PKH = matrices(layout, flat_PD)
    keep = (~resets).to(flat_PD.dtype)
    keep_PTB = keep if keep.dim() == 3 else keep.unsqueeze(0)
    x = input_PIM
    for i, layer in enumerate(body):
        x = layer @ (_with_ones(x) if i else x)
        if i < len(body) - 1:
            x = activation_of(activation).differentiable(x)
    units = layout.units
    memory_PHB = x.new_zeros(x.shape[0], units, keep.shape[-1]) if memory is None else memory
    hidden = []
    for t, gates_PGB in enumerate(x.view(*x.shape[:2], *keep.shape[-2:]).unbind(2)):
        if t:
            memory_PHB = memory_PHB * keep_PTB[:, t].unsqueeze(1)
        added_PGB = memory_PGH @ _with_ones(memory_PHB)
        r, z = torch.sigmoid(gates_PGB[:, : 2 * units] + added_PGB[:, : 2 * units]).chunk(GATES - 1, dim=1)
        n = torch.tanh(gates_PGB[:, 2 * units :] + r * added_PGB[:, 2 * units :])
        memory_PHB = (1 - z) * n + z * memory_PHB
        hidden.append(memory_PHB)
    return output_PKH @ _with_ones(torch.cat(hidden, dim=2))


def _with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(x.shape[0], 1, x.shape[2])], dim=1)
