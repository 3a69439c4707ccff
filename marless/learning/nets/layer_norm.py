"""P perceptrons with layer normalisation, trained together; their definition is in `nets.kinds`.

Below the activation of each hidden layer, x̂ = (z − mean) · s with s = 1/√(variance + ε), over the layer's units.
Backward, ∂z = s · (∂x̂ − mean(∂x̂) − x̂ · mean(∂x̂ · x̂)). Source: Ba, Kiros & Hinton 2016, without their gain and bias.
Shapes: P nets, D parameters, H units, I inputs + 1, R chosen inputs, K outputs, M samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.nets import kernels
from marless.learning.nets.kernels import activation as activation_of
from marless.learning.nets.kinds import EPSILON
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.stacked import matrices

_CHUNK = 1024  # samples per pass of `evaluate`, as in `nets.stacked`


@dataclass(frozen=True)
class _Hidden:
    """What a hidden layer keeps of a pass forward."""

    normalised_PHM: Tensor  # noqa: N815  # a shape suffix
    scale_P1M: Tensor  # noqa: N815
    """s."""
    output: Tensor
    """[P, H + 1, M]; the last row is 1 and carries the next layer's bias."""


class StackedNormalised:
    """See `nets.stacked.FeedForward`."""

    def __init__(self, layout: NetLayout, flat_PD: Tensor, activation: str) -> None:
        """Make the nets; raises SpecError for an unknown activation."""
        self.layout = layout
        self.activation = activation
        self.gradient_PD = torch.zeros_like(flat_PD)
        self._activation = activation_of(activation)
        self._layers = matrices(layout, flat_PD)
        self._d_layers = matrices(layout, self.gradient_PD)
        self._hidden: list[_Hidden] = []
        self._input_PIM = flat_PD.new_empty(0)

    @property
    def output_layer(self) -> Tensor:
        return self._layers[-1]

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        self._input_PIM, self._hidden = input_PIM, []
        x = input_PIM
        for layer in self._layers[:-1]:
            self._hidden.append(self._normalised(layer, x))
            x = self._hidden[-1].output
        return self._product(self._layers[-1], x)

    def release(self) -> None:
        self._hidden = []

    def backward(self, d_output_PKM: Tensor) -> None:
        inputs = (self._input_PIM, *(each.output for each in self._hidden))
        gradient = d_output_PKM
        for i in range(len(self._layers) - 1, -1, -1):
            kernels.matmul(gradient, inputs[i].transpose(1, 2), out=self._d_layers[i])
            if i:
                gradient = self._below(i, gradient)

    def input_gradient(self, d_output_PKM: Tensor, rows_PR: Tensor) -> Tensor:
        gradient = d_output_PKM
        for i in range(len(self._layers) - 1, 0, -1):
            gradient = self._below(i, gradient)
        first_PHI = self._layers[0]
        columns_PHR = first_PHI.gather(2, rows_PR.unsqueeze(1).expand(-1, first_PHI.shape[1], -1))
        return self._product(columns_PHR.transpose(1, 2), gradient)

    def evaluate(self, input_PIS: Tensor, resets: Tensor | None = None) -> Tensor:
        found = []
        for chunk in torch.split(input_PIS, _CHUNK, dim=2):
            x = chunk
            for layer in self._layers[:-1]:
                x = self._normalised(layer, x).output
            found.append(self._product(self._layers[-1], x))
        return torch.cat(found, dim=2)

    def _normalised(self, layer_PHI: Tensor, x_PIM: Tensor) -> _Hidden:
        z_PHM = self._product(layer_PHI, x_PIM)
        z_PHM -= z_PHM.mean(dim=1, keepdim=True)
        scale_P1M = (z_PHM.square().mean(dim=1, keepdim=True) + EPSILON).rsqrt_()
        z_PHM *= scale_P1M
        output = z_PHM.new_ones(z_PHM.shape[0], z_PHM.shape[1] + 1, z_PHM.shape[2])
        output[:, :-1] = z_PHM
        self._activation.apply_(output[:, :-1])
        return _Hidden(z_PHM, scale_P1M, output)

    def _below(self, i: int, gradient: Tensor) -> Tensor:
        """The gradient at z of the hidden layer below layer i, given that at the layer's outputs."""
        hidden = self._hidden[i - 1]
        found_PHM = self._product(self._layers[i][:, :, :-1].transpose(1, 2), gradient)
        self._activation.through_(found_PHM, hidden.output[:, :-1])
        along_P1M = (found_PHM * hidden.normalised_PHM).mean(dim=1, keepdim=True)
        found_PHM -= found_PHM.mean(dim=1, keepdim=True)
        return found_PHM.addcmul_(hidden.normalised_PHM, along_P1M, value=-1).mul_(hidden.scale_P1M)

    @staticmethod
    def _product(matrix_POI: Tensor, x_PIM: Tensor) -> Tensor:
        out_POM = x_PIM.new_empty(matrix_POI.shape[0], matrix_POI.shape[1], x_PIM.shape[2])
        kernels.matmul(matrix_POI, x_PIM, out=out_POM)
        return out_POM
