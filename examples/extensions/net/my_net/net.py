"""A kind of net, written once for actors (NumPy) and learners (torch): a residual net (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from marless.learning.nets.net_kind import Array, InputShape, Layer, Ops


class MyNet:
    """Layers of one width, each of which adds to what it got."""

    def matrices(self, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        """(outputs, inputs) of each layer, the output layer last; `hidden` is `model.hidden` of the job."""
        first, *more = hidden
        return [(first, inputs.size), *((first, first) for _ in more), (outputs, first)]

    def memory(self, hidden: tuple[int, ...]) -> int:
        """How many numbers the net remembers of each episode: none."""
        return 0

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        """Outputs and the next memory. All arrays are [nets, units, samples]; none may be changed in place."""
        first, *blocks, last = layers
        x = ops.activate(first(x))
        for block in blocks:
            x = x + ops.activate(block(x))
        return last(x), memory


KIND = MyNet()
