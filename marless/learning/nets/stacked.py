"""P nets of one layout, trained together: one batched product per layer, forward and backward by hand.

Written by hand, so that gradients go to preallocated buffers, no autograd graph is built, and the same code runs on
CPU and GPU. Any loss works: `backward` takes its gradient with respect to the outputs, in closed form or from autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from marless.core.errors import SpecError
from marless.learning.nets import kernels
from marless.learning.nets.compiled import CLayer, CPerceptrons, Library, library
from marless.learning.nets.kernels import Activation, Then
from marless.learning.nets.kernels import activation as activation_of
from marless.learning.nets.kinds import LAYER_NORM, MLP, NATURE, Precision
from marless.learning.nets.layout import GRULayout, Layout, LSTMLayout, NetLayout

_CHUNK = 1024  # samples per pass of `evaluate`, so that the activations of a few policies fit into a core's cache
WORKSPACES = 8
"""Maximum number of buffer sets, one per number of samples; without a limit, episodes of many lengths fill memory."""
_THIN = 16
"""Number of outputs below which kernels.c has a layer's gradient in vectors (`is_thin`)."""
_PANELS = 4
_RECTIFIED = (MLP, LAYER_NORM, NATURE)
"""Kinds of nets whose first layer is followed by the activation."""


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

    @property
    def activation(self) -> str:
        """The name of the non-linearity after each dense hidden layer, in `marless.learning.nets.kernels`."""

    @property
    def output_layer(self) -> Tensor:
        """The last layer's matrix, a view [P, K, H + 1] of the parameters."""

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        """Outputs [P, K, M]; valid until the next call with as many samples."""

    def backward(self, d_output_PKM: Tensor) -> None:
        """Write the layers' gradients to `gradient_PD`, given the loss's gradient with respect to the last outputs."""

    def evaluate(self, input_PIS: Tensor, resets: Tensor | None = None) -> Tensor:
        """Outputs [P, K, S] of any number of samples, as a new tensor; `backward` cannot follow."""

    def release(self) -> None:
        """Give the memory of all buffers back; the next passes allocate others."""


class FeedForward(Net, Protocol):
    """Nets without memory, which can also be differentiated with respect to their inputs."""

    def input_gradient(self, d_output_PKM: Tensor, rows_PR: Tensor) -> Tensor:
        """The loss's gradient with respect to some of the last inputs, [P, R, M], given that at the outputs.

        `rows_PR`, int64, has the indices of the inputs of each net. `gradient_PD` does not change. Either this or
        `backward` may follow a `forward`, not both.
        """


def feed_forward(layout: NetLayout, flat_PD: Tensor, activation: str, precision: Precision = "float32") -> FeedForward:
    """The net, as `net` builds it; raises SpecError for nets with memory, too."""
    if layout.memory:
        raise SpecError(f"{layout.kind} nets have a memory, and these must not")
    if isinstance(layout, Layout):
        return StackedMLP(layout, flat_PD, activation)
    from marless.learning.nets.layer_norm import StackedNormalised
    from marless.learning.nets.unrolled import Unrolled

    if layout.kind == LAYER_NORM:
        return StackedNormalised(layout, flat_PD, activation)
    return Unrolled(layout, flat_PD, activation, precision)


def net(layout: NetLayout, flat_PD: Tensor, activation: str, precision: Precision = "float32") -> Net:
    """Make the stacked nets of a layout; raises SpecError for an unknown activation.

    Nets with a backward pass by hand (`kinds.is_by_hand`) are always computed in float32.
    """
    if not layout.memory:
        return feed_forward(layout, flat_PD, activation, precision)
    from marless.learning.nets.gru import StackedGRU  # these are imported here, because they import this module
    from marless.learning.nets.lstm import StackedLSTM
    from marless.learning.nets.unrolled import Unrolled

    if isinstance(layout, GRULayout):
        return StackedGRU(layout, flat_PD, activation)
    if isinstance(layout, LSTMLayout):
        return StackedLSTM(layout, flat_PD, activation)
    return Unrolled(layout, flat_PD, activation, precision)


def units_off(net: Net) -> Tensor | None:
    """The share [P] of the first layer's units that no sample of the last `backward` has turned on.

    No gradient reaches their weights. With all of them off, a net has the same outputs whatever it observes, and never
    learns to read it. Only a relu turns units off: None for other activations, and for nets in which it does not follow
    the first layer.
    """
    layout = net.layout
    if net.activation != "relu" or layout.kind not in _RECTIFIED or len(layout.shapes) == 1:
        return None
    gradient_PHI = net.gradient_PD[:, layout.spans[0]].view(-1, *layout.shapes[0])
    off_P = (gradient_PHI == 0).all(dim=2).float().mean(dim=1)
    # A loss without any gradient, as of equal rewards, says nothing of units.
    return off_P * net.gradient_PD.any(dim=1)


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

    def release(self) -> None:
        self._workspaces.clear()

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


@dataclass(frozen=True)
class _Room:
    """Buffers for one number of samples, and their description for kernels.c."""

    perceptrons: CPerceptrons
    values: tuple[Tensor, ...]
    """Values of each hidden layer, in panels; the description points to them, and to the first layer."""
    first_PHI: Tensor  # noqa: N815  # a shape suffix
    output: Tensor
    """[P, K, M]."""


class Fused:
    """The passes of `StackedMLP` by compiled kernels: all layers at once, for a panel of some samples after the other.

    A panel's values stay in a core's cache while they go through the layers, forward and backward, and the gradients of
    the weights are added up on the way. Layer by layer, each array of a minibatch is read from and written to memory
    several times, which takes a third of an update's time.
    """

    def __init__(
        self, kernels: Library, layers: Sequence[Tensor], gradients: Sequence[Tensor], then: Then, rooms: int
    ) -> None:
        """Make the buffers that do not depend on the number of samples; those of up to `rooms` numbers will be kept."""
        self._kernels, self._then, self._limit = kernels, then, rooms
        self._layers, self._gradients = tuple(layers), tuple(gradients)
        self._stack = layers[0].shape[0]
        new, width = layers[0].new_zeros, kernels.width
        # A panel holds the largest layer with its row of ones or, turned, as many rows as it has columns.
        self._panel = width * max(width, *(size + 1 for layer in layers for size in layer.shape[1:]))
        self._panels = new(_PANELS * self._panel)
        # Elements of a row, as `wide_of` in kernels.c.
        wide = [o * kernels.lanes if o < _THIN else -(-o // width) * width for o in (x.shape[1] for x in layers)]
        self._sums = [new(layer.shape[2] * each) for layer, each in zip(layers, wide, strict=True)]
        self._rooms: dict[int, _Room] = {}
        self._input_PIM = new(0)

    def forward(self, input_PIM: Tensor) -> Tensor:
        """Outputs [P, K, M]."""
        # Kept for `backward`, which gets its address: if it is a copy made here, nobody else keeps it alive.
        self._input_PIM, room = _dense(input_PIM), self._kept_room(input_PIM.shape[2])
        self._kernels.forward(room.perceptrons, *_rows(self._input_PIM), *_rows(room.output))
        return room.output

    def backward(self, d_output_PKM: Tensor) -> None:
        """Write the gradients of all layers."""
        room, above_PKM = self._kept_room(d_output_PKM.shape[2]), _dense(d_output_PKM)
        self._kernels.backward(room.perceptrons, *_rows(self._input_PIM), *_rows(above_PKM), None, 0, 0)

    def input_gradient(self, d_output_PKM: Tensor, rows_PR: Tensor) -> Tensor:
        """The gradient at some inputs of each net, [P, R, M]."""
        first_PHI, samples = self._layers[0], d_output_PKM.shape[2]
        columns_PHR = first_PHI.gather(2, rows_PR.unsqueeze(1).expand(-1, first_PHI.shape[1], -1))
        chosen_PHR = torch.nn.functional.pad(columns_PHR, (0, 1))  # kernels.c takes a last column for the bias
        room = self._room(samples, self._kept_room(samples).values, chosen_PHR)
        above_PKM, result_PRM = _dense(d_output_PKM), first_PHI.new_empty(self._stack, rows_PR.shape[1], samples)
        self._kernels.backward(room.perceptrons, None, 0, 0, *_rows(above_PKM), *_rows(result_PRM))
        return result_PRM

    def evaluate(self, input_PIS: Tensor) -> Tensor:
        """Outputs of any number of samples, as a new tensor; no values are kept."""
        room, inputs = self._room(input_PIS.shape[2], (), self._layers[0]), _dense(input_PIS)
        self._kernels.forward(room.perceptrons, *_rows(inputs), *_rows(room.output))
        return room.output

    def _kept_room(self, samples: int) -> _Room:
        """The buffers for passes forward and backward of this many samples."""
        if samples not in self._rooms:
            if len(self._rooms) == self._limit:
                del self._rooms[next(iter(self._rooms))]
            width, ones = self._kernels.width, self._layers[0].new_ones
            sizes = [(self._stack, -(-samples // width), layer.shape[1] + 1, width) for layer in self._layers[:-1]]
            self._rooms[samples] = self._room(samples, tuple(map(ones, sizes)), self._layers[0])
        return self._rooms[samples]

    def _room(self, samples: int, values: tuple[Tensor, ...], first_PHI: Tensor) -> _Room:
        """Describe the nets with this first layer to kernels.c; without `values`, it keeps none."""
        described = (CLayer * len(self._layers))()
        weights = (first_PHI, *self._layers[1:])
        for i, (layer, gradient) in enumerate(zip(weights, self._gradients, strict=True)):
            kept = values[i].data_ptr() if i < len(values) else None
            described[i] = CLayer(
                layer.data_ptr(),
                layer.stride(0),
                gradient.data_ptr(),
                gradient.stride(0),
                kept,
                self._sums[i].data_ptr(),
                layer.shape[1],
                layer.shape[2] - 1,
            )
        perceptrons = CPerceptrons(
            self._stack, len(weights), samples, self._then, self._panels.data_ptr(), self._panel, described
        )
        output = first_PHI.new_empty(self._stack, weights[-1].shape[1], samples)
        return _Room(perceptrons, values, first_PHI, output)


def fused(layers: Sequence[Tensor], gradients: Sequence[Tensor], activation: Activation, rooms: int) -> Fused | None:
    """The passes of nets with these matrices [P, outputs, inputs + 1], or None if no compiled kernels fit them."""
    kernels, every = library(), (*layers, *gradients)
    alike = all(x.dtype is torch.float32 and x.device.type == "cpu" for x in every)
    if kernels is None or activation.fused is None or not alike:
        return None
    # kernels.c is told the distance between nets only, and takes the rows of a matrix to be without gaps.
    if any(x.stride()[1:] != (x.shape[2], 1) for x in every):
        return None
    return Fused(kernels, layers, gradients, activation.fused[0], rooms)


def _rows(x: Tensor) -> tuple[int, int, int]:
    """Address and strides of the nets and rows of [P or 1, rows, M], whose columns are without gaps."""
    # With a stride of 0 all nets read the one input that they share, as if it were broadcast.
    return x.data_ptr(), x.stride(0) if x.shape[0] > 1 else 0, x.stride(1)


def _dense(x: Tensor) -> Tensor:
    """The same as float32 with columns without gaps; without a copy if it is so already."""
    return x.float() if x.stride(2) == 1 else x.float().contiguous()
