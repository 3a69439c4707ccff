"""The compiled passes of stacked perceptrons: all layers at once, for a panel of some samples after the other.

A panel's values stay in a core's cache while they go through the layers, forward and backward, and the gradients of the
weights are added up on the way. Layer by layer, each array of a minibatch is read from and written to memory several
times, which takes a third of an update's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.nets.activations import Activation
from marless.learning.nets.compiled import CPerceptrons, Layer, Library, library
from marless.learning.nets.kernels import Then

_THIN = 16
"""Number of outputs below which kernels.c has a layer's gradient in vectors (`is_thin`)."""
_PANELS = 4


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
    """The passes of `marless.learning.nets.stacked.StackedMLP` by compiled kernels; see there."""

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
        self._sums = [new(layer.shape[2] * self._wide(layer.shape[1])) for layer in layers]
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
        described = (Layer * len(self._layers))()
        weights = (first_PHI, *self._layers[1:])
        for i, (layer, gradient) in enumerate(zip(weights, self._gradients, strict=True)):
            kept = values[i].data_ptr() if i < len(values) else None
            described[i] = Layer(
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

    def _wide(self, outputs: int) -> int:
        """Elements of a row of `sums`, as `wide_of` in kernels.c."""
        width = self._kernels.width
        return outputs * self._kernels.lanes if outputs < _THIN else -(-outputs // width) * width


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
