"""Hessian-vector products of objectives of a stack of nets' outputs.

Perceptrons have them by hand, forward and backward along a direction (Pearlmutter 1994), because differentiating
autograd's gradient takes about twice as long. Every value is stored next to its *flow*, its derivative along the
direction, so that the product rule over a layer is one matrix product instead of a sum of two. Values that do not
depend on the direction are computed once. Nets of other kinds differentiate autograd's gradient, because a recurrence
would need every derivative twice: a product takes about twice the time of a gradient, and is computed for few samples,
in a few Lanczos steps per round. The objectives of policies have their gradient and Hessian in closed form.
Shapes: P nets, D parameters of each, I inputs + 1, H hidden units, K outputs, F free parameters, T steps, B copies, M
samples (T·B for nets with memory). `weight` [P, M] has the coefficient of each sample: for a policy, its weight in the
mean times its advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from marless.learning.curvature.lanczos import Product
from marless.learning.nets import kernels
from marless.learning.nets.acting_heads import ILLEGAL_LOGIT
from marless.learning.nets.beta import LOG_2
from marless.learning.nets.kernels import activation as activation_of
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


class _Layer:
    """One matrix [O, I] of every net, its inputs and the gradient at its outputs, each with its flow."""

    def __init__(self, matrix_POI: Tensor, samples: int) -> None:
        stack, outputs, inputs = matrix_POI.shape
        new = matrix_POI.new_zeros
        self.matrix_POI = matrix_POI
        # Pairs are in the opposite order of `inputs`: their product adds Ẇ x to W ẋ, which is the product rule.
        self._flow_value = new(stack, outputs, inputs, 2)
        self._flow_value[..., 1] = matrix_POI
        self._value_flow = new(stack, outputs, 2, inputs - 1)
        self._value_flow[:, :, 0] = matrix_POI[:, :, :-1]
        self.inputs = new(stack, inputs, 2, samples)
        """(value, flow); the last row of values is ones, with flow 0."""
        self.gradient = new(stack, outputs, 2, samples)
        """(flow, value)."""

    def turn(self, flow_POI: Tensor) -> None:
        """Set the direction of this layer's matrix."""
        self._flow_value[..., 0] = flow_POI
        self._value_flow[:, :, 1] = flow_POI[:, :, :-1]

    def forward(self, out: Tensor) -> None:
        """Flow of the outputs, [P, O, M]."""
        kernels.matmul(self._flow_value.flatten(2), self.inputs.flatten(1, 2), out=out)

    def backward(self, out: Tensor) -> None:
        """Flow of the gradient at the inputs, [P, I − 1, M]."""
        kernels.matmul(self._value_flow.flatten(1, 2).transpose(1, 2), self.gradient.flatten(1, 2), out=out)

    def at_matrix(self, out: Tensor) -> None:
        """Flow of the gradient at the matrix, [P, O, I]."""
        kernels.matmul(self.gradient.flatten(2), self.inputs.flatten(2).transpose(1, 2), out=out)


class HessianProduct:
    """Products of vectors with the Hessian of Σ_m f_m(net(x_m)) with respect to the parameters.

    The Hessian is that at the parameters at construction; they must not change while it is used.
    """

    def __init__(
        self,
        layout: Layout,
        flat_PD: Tensor,
        activation: str,
        input_PIM: Tensor,
        objective: Callable[[Tensor], OutputObjective],
    ) -> None:
        first_POI, *rest = matrices(layout, flat_PD)
        stack, units, _ = first_POI.shape
        samples = input_PIM.shape[2]
        self._layout, self._activation = layout, activation_of(activation)
        self._input_PIM = input_PIM
        self._layers = [_Layer(matrix, samples) for matrix in rest]
        self._first_gradient_PHM = flat_PD.new_empty(stack, units, samples)
        self._output_flow_PKM = flat_PD.new_empty(stack, layout.outputs, samples)
        self._product_PD = torch.zeros_like(flat_PD)
        self._at_matrices = matrices(layout, self._product_PD)
        output_PKM = self._forward(first_POI)
        self._slopes = [self._activation.slope(layer.inputs[:, :-1, 0]) for layer in self._layers]
        self._objective = objective(output_PKM)
        self._bends = self._backward()

    def __call__(self, direction_PD: Tensor) -> Tensor:
        """The product with each net's direction, [P, D]; overwritten by the next call."""
        first_POI, *rest = matrices(self._layout, direction_PD)
        kernels.matmul(first_POI, self._input_PIM, out=self._layers[0].inputs[:, :-1, 1])
        above = [layer.inputs[:, :-1, 1] for layer in self._layers[1:]] + [self._output_flow_PKM]
        for layer, slope, matrix, out in zip(self._layers, self._slopes, rest, above, strict=True):
            layer.inputs[:, :-1, 1] *= slope
            layer.turn(matrix)
            layer.forward(out)
        free = self._layout.free
        at_output, at_free = self._objective.product(self._output_flow_PKM, direction_PD[:, -free:] if free else None)
        if at_free is not None:
            self._product_PD[:, -free:] = at_free
        self._layers[-1].gradient[:, :, 0] = at_output
        for i in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[i]
            layer.at_matrix(self._at_matrices[i + 1])
            below = self._layers[i - 1].gradient[:, :, 0] if i else self._first_gradient_PHM
            layer.backward(below)
            below *= self._slopes[i]
            if (bend := self._bends[i]) is not None:
                below.addcmul_(bend, layer.inputs[:, :-1, 1])
        kernels.matmul(self._first_gradient_PHM, self._input_PIM.transpose(1, 2), out=self._at_matrices[0])
        return self._product_PD

    def _forward(self, first_POI: Tensor) -> Tensor:
        """Write every layer's inputs; returns the outputs."""
        x = torch.matmul(first_POI, self._input_PIM)
        for layer in self._layers:
            self._activation.apply_(x)
            layer.inputs[:, :-1, 0] = x
            layer.inputs[:, -1, 0] = 1.0
            x = torch.matmul(layer.matrix_POI, layer.inputs[:, :, 0])
        return x

    def _backward(self) -> list[Tensor | None]:
        """Write the gradients at every layer's outputs; returns those at hidden units times φ″/φ′, None if it is 0."""
        self._layers[-1].gradient[:, :, 1], _ = self._objective.gradient()
        bend, bends = self._activation.bend, list[Tensor | None]()
        for i in range(len(self._layers) - 1, -1, -1):
            layer = self._layers[i]
            at_hidden = torch.matmul(layer.matrix_POI[:, :, :-1].transpose(1, 2), layer.gradient[:, :, 1])
            bends.append(bend(layer.inputs[:, :-1, 0]) * at_hidden if bend else None)
            if i:
                self._layers[i - 1].gradient[:, :, 1] = at_hidden * self._slopes[i]
        return bends[::-1]


def matrices(layout: Layout, flat_PD: Tensor) -> list[Tensor]:
    """Views [P, O, I] of every layer of the flat parameters."""
    return [flat_PD[:, span].view(-1, *shape) for span, shape in zip(layout.spans, layout.shapes, strict=True)]


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


class BetaScore:
    """Σ w·log π(a) of Beta distributions; outputs are as in `marless.learning.nets.beta`."""

    def __init__(self, output_PKM: Tensor, action_PAM: Tensor, weight_PM: Tensor) -> None:
        output = output_PKM.double()
        shape = 1 + torch.nn.functional.softplus(output)
        total = shape + shape.roll(shape.shape[1] // 2, dims=1)
        self._weight_P1M = weight_PM.unsqueeze(1)
        self._slope_PKM = output.sigmoid()
        """∂α/∂o."""
        sides = torch.cat([action_PAM, -action_PAM], dim=1).double().log1p() - LOG_2
        self._at_shape_PKM = sides - shape.digamma() + total.digamma()
        """∂log π/∂α = ln x − ψ(α) + ψ(α + β)."""
        self._own_PKM, self._both_PKM = -shape.polygamma(1), total.polygamma(1)

    def gradient(self) -> tuple[Tensor, None]:
        return (self._weight_P1M * self._at_shape_PKM * self._slope_PKM).float(), None

    def product(self, flow_PKM: Tensor, free_flow_PF: Tensor | None) -> tuple[Tensor, None]:
        """The product, with α̇ = α′ȯ: α′ (ψ′(α + β)(α̇ + β̇) − ψ′(α) α̇) + α″ ∂log π/∂α ȯ, α″ = α′(1 − α′)."""
        moved_PKM = self._slope_PKM * flow_PKM
        both_PKM = moved_PKM + moved_PKM.roll(moved_PKM.shape[1] // 2, dims=1)
        bent_PKM = self._own_PKM * moved_PKM + self._both_PKM * both_PKM
        found_PKM = self._slope_PKM * bent_PKM + (1 - self._slope_PKM) * moved_PKM * self._at_shape_PKM
        return (self._weight_P1M * found_PKM).float(), None
