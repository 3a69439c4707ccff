"""P nets of one layout, trained together: one batched product per layer, forward and backward by hand.

Written by hand, so that gradients go to preallocated buffers, no autograd graph is built, and the same code runs on
CPU and GPU. Any loss works: `backward` takes its gradient with respect to the outputs, in closed form or from autograd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from marless.core.errors import SpecError
from marless.learning.nets import kernels
from marless.learning.nets.activations import activation as activation_of
from marless.learning.nets.fused import fused
from marless.learning.nets.layout import GRULayout, Layout, NetLayout

_CHUNK = 1024  # samples per pass of `evaluate`, so that the activations of a few policies fit into a core's cache
WORKSPACES = 8
"""Maximum number of buffer sets, one per number of samples; without a limit, episodes of many lengths fill memory."""


class Net(Protocol):
    """P nets of one layout, over the caller's flat parameter tensor [P, D].

    Inputs are feature-major, float32 [P, inputs + 1, M], with a last row of ones. For a recurrent net, the M = T·B
    columns are time-major (column t·B + b), and `resets`, bool [T, B] or (per net) [P, T, B], is true where the memory
    of copy b is reset before step t. Before step 0, whatever `resets` says, it is `memory`, float32 [P, H, B], or
    empty if that is None; no gradient flows to it. Perceptrons ignore both. Not thread-safe.
    """

    gradient_PD: Tensor  # noqa: N815  # a shape suffix
    """Gradients, [P, D]; `backward` writes them except for columns of free parameters, which the caller writes."""

    @property
    def layout(self) -> NetLayout:
        """Positions of the parameters."""
        ...

    @property
    def activation(self) -> str:
        """The name of the non-linearity after each dense hidden layer, in `marless.learning.nets.activations`."""
        ...

    @property
    def output_layer(self) -> Tensor:
        """The last layer's matrix, a view [P, K, H + 1] of the parameters."""
        ...

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        """Outputs [P, K, M]; valid until the next call with as many samples."""
        ...

    def backward(self, d_output_PKM: Tensor) -> None:
        """Write the layers' gradients to `gradient_PD`, given the loss's gradient with respect to the last outputs."""
        ...

    def evaluate(self, input_PIS: Tensor, resets: Tensor | None = None) -> Tensor:
        """Outputs [P, K, S] of any number of samples, as a new tensor; `backward` cannot follow."""
        ...


class FeedForward(Net, Protocol):
    """Nets without memory, which can also be differentiated with respect to their inputs."""

    def input_gradient(self, d_output_PKM: Tensor, rows_PR: Tensor) -> Tensor:
        """The loss's gradient with respect to some of the last inputs, [P, R, M], given that at the outputs.

        `rows_PR`, int64, has the indices of the inputs of each net. `gradient_PD` does not change. Either this or
        `backward` may follow a `forward`, not both.
        """
        ...


def feed_forward(layout: NetLayout, flat_PD: Tensor, activation: str) -> FeedForward:
    """The net, as `net` builds it; raises SpecError for nets with memory, too."""
    if layout.memory:
        raise SpecError(f"{layout.kind} nets have a memory, and these must not")
    if isinstance(layout, Layout):
        return StackedMLP(layout, flat_PD, activation)
    from marless.learning.nets.unrolled import Unrolled

    return Unrolled(layout, flat_PD, activation)


def net(layout: NetLayout, flat_PD: Tensor, activation: str) -> Net:
    """Make the stacked nets of a layout; raises SpecError for an unknown activation."""
    if isinstance(layout, Layout):
        return StackedMLP(layout, flat_PD, activation)
    from marless.learning.nets.gru import StackedGRU  # these are imported here, because they import this module
    from marless.learning.nets.unrolled import Unrolled

    return (
        StackedGRU(layout, flat_PD, activation)
        if isinstance(layout, GRULayout)
        else Unrolled(layout, flat_PD, activation)
    )


@dataclass(frozen=True)
class _Workspace:
    """Buffers for one number of samples M."""

    hidden: tuple[Tensor, ...]
    """[P, H + 1, M] per hidden layer; the last row stays 1 and carries the next layer's bias."""
    d_hidden: tuple[Tensor, ...]
    """[P, H, M] per hidden layer, gradient of the loss with respect to it."""
    output: Tensor
    """[P, K, M]."""


class StackedMLP:
    """P perceptrons; see `Net`."""

    def __init__(self, layout: Layout, flat_PD: Tensor, activation: str, gradient_PD: Tensor | None = None) -> None:
        """Make the nets; `gradient_PD` is a buffer for gradients, for nets that are part of larger ones.

        Raises SpecError for an unknown activation.
        """
        self.layout = layout
        self.gradient_PD = torch.zeros_like(flat_PD) if gradient_PD is None else gradient_PD
        self.activation = activation
        self._activation = activation_of(activation)
        self._layers = matrices(layout, flat_PD)
        self._d_layers = matrices(layout, self.gradient_PD)
        self._fused = fused(self._layers, self._d_layers, self._activation, WORKSPACES)
        self._workspaces: dict[int, _Workspace] = {}
        self._input_PIM = flat_PD.new_empty(0)

    @property
    def output_layer(self) -> Tensor:
        return self._layers[-1]

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        if self._fused:
            return self._fused.forward(input_PIM)
        work = self._workspace(input_PIM.shape[2])
        self._input_PIM = x = input_PIM
        for layer, buffer in zip(self._layers[:-1], work.hidden, strict=True):
            self._activation.layer(layer, x, out=buffer[:, :-1])
            x = buffer
        kernels.matmul(self._layers[-1], x, out=work.output)
        return work.output

    def backward(self, d_output_PKM: Tensor) -> None:
        if self._fused:
            self._fused.backward(d_output_PKM)
            return
        work = self._workspace(d_output_PKM.shape[2])
        inputs = (self._input_PIM, *work.hidden)
        gradient = d_output_PKM
        for i in range(len(self._layers) - 1, -1, -1):
            kernels.matmul(gradient, inputs[i].transpose(1, 2), out=self._d_layers[i])
            if i:
                gradient = self._below(i, gradient, work)

    def input_gradient(self, d_output_PKM: Tensor, rows_PR: Tensor) -> Tensor:
        if self._fused:
            return self._fused.input_gradient(d_output_PKM, rows_PR)
        work = self._workspace(d_output_PKM.shape[2])
        gradient = d_output_PKM
        for i in range(len(self._layers) - 1, 0, -1):
            gradient = self._below(i, gradient, work)
        first_PHI = self._layers[0]
        # Only the wanted columns are multiplied: of a joint critic's inputs, actions are the smaller part.
        columns_PHR = first_PHI.gather(2, rows_PR.unsqueeze(1).expand(-1, first_PHI.shape[1], -1))
        result_PRM = gradient.new_empty(gradient.shape[0], rows_PR.shape[1], gradient.shape[2])
        kernels.matmul(columns_PHR.transpose(1, 2), gradient, out=result_PRM)
        return result_PRM

    def evaluate(self, input_PIS: Tensor, resets: Tensor | None = None) -> Tensor:
        if self._fused:
            return self._fused.evaluate(input_PIS)
        chunks = [self.forward(chunk).clone() for chunk in torch.split(input_PIS, _CHUNK, dim=2)]
        return torch.cat(chunks, dim=2)

    def _below(self, i: int, gradient: Tensor, work: _Workspace) -> Tensor:
        """The gradient before the activation below layer i, given that at the layer's outputs."""
        below = work.d_hidden[i - 1]
        matrix_PIH = self._layers[i][:, :, :-1].transpose(1, 2)
        self._activation.below(matrix_PIH, gradient, work.hidden[i - 1][:, :-1], out=below)
        return below

    def _workspace(self, samples: int) -> _Workspace:
        if samples not in self._workspaces:
            if len(self._workspaces) == WORKSPACES:
                del self._workspaces[next(iter(self._workspaces))]
            stack = self._layers[0].shape[0]
            new = self.gradient_PD.new_ones
            self._workspaces[samples] = _Workspace(
                hidden=tuple(new(stack, layer.shape[2], samples) for layer in self._layers[1:]),
                d_hidden=tuple(new(stack, layer.shape[1], samples) for layer in self._layers[:-1]),
                output=new(stack, self.layout.outputs, samples),
            )
        return self._workspaces[samples]


def matrices(layout: NetLayout, flat_PD: Tensor) -> tuple[Tensor, ...]:
    """Views [P, outputs, inputs + 1] of each matrix."""
    return tuple(flat_PD[:, span].view(-1, *shape) for span, shape in zip(layout.spans, layout.shapes, strict=True))
