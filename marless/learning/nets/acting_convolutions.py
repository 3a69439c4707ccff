"""The nets of images of `nets.convolutional` while they act, in compiled steps: twins of the definitions there.

Each image goes through all convolutions while it is in a core's caches; then the dense layers read those of all copies.
Results depend neither on the number of copies nor on the kind of CPU. Without a compiler, or with
MARLESS_KERNELS=numpy, `acting_images` computes the same up to rounding.
Shapes: N agents, W agents with weights of their own (N, or 1 for all), B environment copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import FloatArray
from marless.learning.nets.acting_nets import ActingNet
from marless.learning.nets.compiled_images import CStep, ImageLibrary
from marless.learning.nets.convolutional import CONVOLUTIONS, FILTERS, HALVING, KEEPING, SECTIONS
from marless.learning.nets.kinds import IMPALA, NATURE
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.net_kind import Window

_DENSE = Window(1)


@dataclass(frozen=True, eq=False)
class _Image:
    """What a step reads: arrays [height, width, depth], one for each plane."""

    height: int
    width: int
    depth: int
    planes: int = 1
    values: FloatArray | None = None
    """None: the image that is given, or the one that is wanted."""


class _Steps:
    """Steps of one net, and the arrays that they read and write; one thread at a time."""

    def __init__(self, loaded: ImageLibrary) -> None:
        self._take, self._panel = loaded.take_steps, loaded.width
        self._steps: list[CStep] = []
        self._arrays: list[NDArray[np.generic]] = []
        """Kept, as the steps have their addresses alone."""

    def convolve(
        self,
        image: _Image,
        matrix_OI: FloatArray,
        window: Window,
        *,
        from_positive: bool = False,
        to_positive: bool = False,
        added: _Image | None = None,
    ) -> _Image:
        """Add a convolution, with max(x, 0) of what it reads or writes, and with `added` to its sums."""
        step, wide = self._step(image, window), image.width + 2 * window.padding
        step.outputs, step.from_positive, step.to_positive = len(matrix_OI), from_positive, to_positive
        step.panels = self._address(_panels(matrix_OI, image, window, self._panel))
        plane, row = np.ix_(np.arange(image.planes), np.arange(window.size))
        begins = (plane * (image.height + 2 * window.padding) + row) * wide * image.depth
        step.pieces = self._address(np.ascontiguousarray(begins, np.int64))
        if window.padding or from_positive:
            high = image.height + 2 * window.padding
            step.room = self._address(np.zeros(image.planes * high * wide * image.depth, np.float32))
        if added is not None and added.values is not None:
            step.added = added.values.ctypes.data
        return self._append(step, step.outputs)

    def pool(self, image: _Image, window: Window) -> _Image:
        """Add a maximum."""
        return self._append(self._step(image, window), image.depth)

    def take(self, images_MI: FloatArray, out_MO: FloatArray, *, width: int = 0) -> None:
        """Take each image through all steps; arrays have no gaps in their rows. With `width`, they are one image."""
        steps = (CStep * len(self._steps))(*self._steps)
        steps[-1].to = None
        if width:
            steps[0].width = steps[0].columns = width
        x, out = ((each.ctypes.data, each.strides[0] // each.itemsize) for each in (images_MI, out_MO))
        self._take(steps, len(steps), 1 if width else len(images_MI), *x, *out)

    def _step(self, image: _Image, window: Window) -> CStep:
        step = CStep(image.planes, image.height, image.width, image.depth, window.size, window.stride, window.padding)
        step.rows, step.columns = window.steps(image.height), window.steps(image.width)
        step.source = None if image.values is None else image.values.ctypes.data
        return step

    def _append(self, step: CStep, depth: int) -> _Image:
        values = np.empty((step.rows, step.columns, depth), np.float32)
        step.to = self._address(values)
        self._steps.append(step)
        return _Image(step.rows, step.columns, depth, values=values)

    def _address(self, array: NDArray[np.generic]) -> int:
        self._arrays.append(array)
        return array.ctypes.data


def _panels(matrix_OI: FloatArray, image: _Image, window: Window, width: int) -> FloatArray:
    """[panels, 1 + inputs, width] of a layer: biases, then weights in the order in which the pieces of a square lie."""
    outputs, inputs = matrix_OI.shape[0], matrix_OI.shape[1] - 1
    channels_last = matrix_OI[:, :-1].reshape(outputs, window.size, window.size, inputs // window.area)
    weights = channels_last.transpose(0, 3, 1, 2) if image.planes > 1 else channels_last
    padded = np.zeros((-(-outputs // width) * width, 1 + inputs), np.float32)
    padded[:outputs, 0], padded[:outputs, 1:] = matrix_OI[:, -1], weights.reshape(outputs, inputs)
    return np.ascontiguousarray(padded.reshape(-1, width, 1 + inputs).swapaxes(1, 2))


def _nature(steps: _Steps, image: _Image, matrices: Sequence[FloatArray]) -> int:
    """Add the convolutions of `NatureNet`; returns how many of the matrices they have."""
    for matrix_OI, (_, window) in zip(matrices, FILTERS, strict=False):
        image = steps.convolve(image, matrix_OI, window, to_positive=True)
    return len(FILTERS)


def _impala(steps: _Steps, image: _Image, matrices: Sequence[FloatArray]) -> int:
    """Add the convolutions of `ImpalaNet`; returns how many of the matrices they have."""
    used = CONVOLUTIONS * len(SECTIONS)
    for start in range(0, used, CONVOLUTIONS):
        first, *blocks = matrices[start : start + CONVOLUTIONS]
        image = steps.pool(steps.convolve(image, first, KEEPING), HALVING)
        for one, other in (blocks[:2], blocks[2:]):
            between = steps.convolve(image, one, KEEPING, from_positive=True, to_positive=True)
            # The activation after the last block is all that reads what it writes.
            last = start + CONVOLUTIONS == used and other is blocks[-1]
            image = steps.convolve(between, other, KEEPING, added=image, to_positive=last)
    return used


_CONVOLVE = {NATURE: _nature, IMPALA: _impala}


class _ImageNet:
    """One net, whose weights may be those of several agents."""

    def __init__(self, loaded: ImageLibrary, layout: NetLayout, matrices: Sequence[FloatArray]) -> None:
        channels, height, width = layout.image or (0, 0, 0)
        self._pixels = layout.input_shape.pixels
        self._convolutions = _Steps(loaded)
        used = _CONVOLVE[layout.kind](self._convolutions, _Image(height, width, 1, planes=channels), matrices)
        self._dense = []
        for matrix_OI in matrices[used:]:
            layer, (outputs, inputs) = _Steps(loaded), matrix_OI.shape
            # As a convolution: samples are the pixels of a row, features their channels.
            layer.convolve(_Image(1, 1, inputs - 1), matrix_OI, _DENSE, to_positive=matrix_OI is not matrices[-1])
            self._dense.append((layer, inputs - 1, outputs))

    def __call__(self, input_MI: FloatArray) -> FloatArray:
        """Outputs [M, K] of inputs [M, I + 1], the last of which is 1."""
        samples, (_, features, _) = len(input_MI), self._dense[0]
        x = np.empty((samples, features), np.float32)
        beside = input_MI.shape[1] - 1 - self._pixels
        self._convolutions.take(input_MI, x)
        x[:, features - beside :] = input_MI[:, self._pixels : -1]
        for layer, _, outputs in self._dense:
            out = np.empty((samples, outputs), np.float32)
            layer.take(x, out, width=samples)
            x = out
        return x


class ActingConvolutions(ActingNet):
    """Nets of `nature` or `impala` with `activation: relu`, with matrices [W, outputs, inputs + 1]."""

    remembers = False

    def __init__(self, loaded: ImageLibrary, layout: NetLayout, matrices: Sequence[FloatArray]) -> None:
        owners = zip(*matrices, strict=True)
        self._nets = [_ImageNet(loaded, layout, owner) for owner in owners]
        self._inputs = layout.inputs
        self._input_NBI = np.empty((0, 0, 0), np.float32)

    def allocate(self, agents: int, batch: int) -> FloatArray:
        # Each copy's image in one piece: so it is observed, and so it is read.
        self._input_NBI = np.ones((agents, batch, self._inputs + 1), np.float32)
        return self._input_NBI.swapaxes(1, 2)

    def output(self) -> FloatArray:
        agents, batch, _ = self._input_NBI.shape
        parts = np.split(self._input_NBI, len(self._nets))
        found = [net(part.reshape(-1, self._inputs + 1)) for net, part in zip(self._nets, parts, strict=True)]
        output_NBK = np.concatenate(found).reshape(agents, batch, -1)
        return np.ascontiguousarray(output_NBK.swapaxes(1, 2))
