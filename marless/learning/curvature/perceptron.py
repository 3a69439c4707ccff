"""Hessian-vector products of stacked perceptrons by hand: forward and backward along a direction (Pearlmutter 1994).

Written by hand, because differentiating autograd's gradient takes about twice as long. Every value is stored next to
its *flow*, its derivative along the direction, so that the product rule over a layer is one matrix product instead of a
sum of two. Values that do not depend on the direction are computed once.
Shapes: P nets, D parameters of each, M samples, I inputs + 1, H hidden units, K outputs, F free parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from marless.learning.curvature.outputs import OutputObjective
from marless.learning.nets import kernels
from marless.learning.nets.kernels import activation as activation_of
from marless.learning.nets.layout import Layout


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
