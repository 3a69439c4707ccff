"""Nets of images: convolutions, then dense layers, which also read what is observed beside the image.

`nature` is the net of Mnih et al. 2015 ("Human-level control through deep reinforcement learning", Methods); `impala`
the deep, residual one of Espeholt et al. 2018 (IMPALA, figure 3), without its memory. `model.hidden` has the dense
layers: (512,) and (256,) in these papers, both with `activation: relu`. Sides may have any length that the windows fit
into. Shapes are those of `nets.net_kind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from marless.core.errors import SpecError
from marless.learning.nets.kinds import IMPALA, NATURE
from marless.learning.nets.net_kind import Array, InputShape, Layer, Ops, Window, flattened

FILTERS = ((32, Window(8, 4)), (64, Window(4, 2)), (64, Window(3, 1)))
"""Channels and window of each convolution of `nature`."""
_LEAST = 36
"""Pixels of a side below which there is no place for the last window of `nature`."""
SECTIONS = (16, 32, 32)
"""Channels of each section of `impala`."""
HALVING = Window(3, 2, padding=1)
KEEPING = Window(3, 1, padding=1)
CONVOLUTIONS = 5
"""Of a section: one before the maximum, and two in each of two residual blocks."""


class NatureNet:
    """Three convolutions whose windows do not leave the image."""

    def matrices(self, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        channels, height, width = _image(NATURE, inputs)
        if min(height, width) < _LEAST:
            raise SpecError(
                f"net {NATURE} reads images of at least {_LEAST} × {_LEAST} pixels, and this one has {height} × "
                f"{width}; choose model.net: {IMPALA}, which reads any, or observe larger ones"
            )
        found = []
        for filters, window in FILTERS:
            found.append((filters, window.area * channels))
            channels, height, width = filters, window.steps(height), window.steps(width)
        return [*found, *_dense(channels * height * width, inputs, hidden, outputs)]

    def memory(self, hidden: tuple[int, ...]) -> int:
        return 0

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        images = ops.images(x)
        for layer, (_, window) in zip(layers, FILTERS, strict=False):
            images = ops.activate(ops.convolve(layer, images, window))
        return _judged(ops, layers[len(FILTERS) :], images, x), memory


class ImpalaNet:
    """Sections, each of a convolution, a maximum that halves the image, and two residual blocks.

    Windows of a maximum are centred, with a pixel added on each side; TensorFlow's, in the paper, begin at the edge
    where a side has an even number of pixels.
    """

    def matrices(self, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        channels, height, width = _image(IMPALA, inputs)
        found = []
        for filters in SECTIONS:
            area = KEEPING.area
            found += [(filters, area * channels), *[(filters, area * filters)] * (CONVOLUTIONS - 1)]
            channels, height, width = filters, HALVING.steps(height), HALVING.steps(width)
        return [*found, *_dense(channels * height * width, inputs, hidden, outputs)]

    def memory(self, hidden: tuple[int, ...]) -> int:
        return 0

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        images, remaining = ops.images(x), list(layers)
        for _ in SECTIONS:
            first, *blocks = remaining[:CONVOLUTIONS]
            images = ops.pool(ops.convolve(first, images, KEEPING), HALVING)
            for one, other in (blocks[:2], blocks[2:]):
                between = ops.convolve(one, ops.activate(images), KEEPING)
                images = images + ops.convolve(other, ops.activate(between), KEEPING)
            remaining = remaining[CONVOLUTIONS:]
        return _judged(ops, remaining, ops.activate(images), x), memory


def _image(net: str, inputs: InputShape) -> tuple[int, int, int]:
    if inputs.image is None:
        raise SpecError(
            f"net {net} reads images, and these inputs are a vector of {inputs.size:,} numbers; choose another "
            "model.net, such as mlp, or an environment that shows images"
        )
    return inputs.image


def _dense(features: int, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
    """The matrices that read features of an image, and the inputs beside it."""
    beside = inputs.size - inputs.pixels
    return [(o, i) for i, o in pairwise((features + beside, *hidden, outputs))]


def _judged(ops: Ops, layers: Sequence[Layer], images: Array, x: Array) -> Array:
    """Outputs of the dense layers, given the last images and all inputs."""
    found, beside = flattened(images), x[:, ops.inputs.pixels :]
    if beside.shape[1]:
        found = ops.join([found, beside])
    for layer in layers[:-1]:
        found = ops.activate(layer(found))
    return layers[-1](found)


NATURE_KIND, IMPALA_KIND = NatureNet(), ImpalaNet()
