"""Nets that read the others whom an observation describes in any order, and any number of them.

Each block of numbers goes through one dense layer, the same for all of a sort, and the maximum of each unit over those
that are there goes on, with the rest of the observation, to the other dense layers: as in Qi et al. 2017 (PointNet),
§4.2, and Zaheer et al. 2017 (deep sets). So outputs do not depend on the order in which others are described, and a
policy meets fewer of them without ado: one that is all zeros is not there. Shapes are those of `nets.net_kind`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from marless.core.errors import SpecError
from marless.learning.nets.kinds import ENTITIES
from marless.learning.nets.net_kind import Array, InputShape, Layer, Ops


class EntitiesNet:
    """A pointwise layer of hidden[0] units for each sort of entities, their maximum, then layers of hidden[1:]."""

    def matrices(self, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        if not inputs.entities:
            raise SpecError(
                f"net {ENTITIES} reads which numbers describe others, and the environment does not tell of these "
                f"{inputs.size:,}; choose another model.net, such as mlp, or set AgentClass.entities in the environment"
            )
        units, *more = hidden
        alone = sum(stop - start for start, stop in _alone(inputs))
        joined = alone + units * len(inputs.entities)
        pointwise = [(units, each.size) for each in inputs.entities]
        return [*pointwise, *((o, i) for i, o in pairwise((joined, *more, outputs)))]

    def memory(self, hidden: tuple[int, ...]) -> int:
        return 0

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        inputs, sorts = ops.inputs, len(ops.inputs.entities)
        found = [x[:, start:stop] for start, stop in _alone(inputs)]
        nets, _, columns = x.shape
        for layer, each in zip(layers, inputs.entities, strict=False):
            blocks = x[:, each.start : each.end].reshape(nets, each.count, each.size, columns)
            there = (blocks != 0).any(2)
            one_by_one = blocks.swapaxes(1, 2).reshape(nets, each.size, each.count * columns)
            points = ops.activate(layer(one_by_one))
            points = points.reshape(nets, points.shape[1], each.count, columns)
            most = ops.largest(ops.choose(there[:, None], points, float("-inf")), 2)
            found.append(ops.choose(there.any(1)[:, None], most, 0.0))
        joined = ops.join(found)
        for layer in layers[sorts:-1]:
            joined = ops.activate(layer(joined))
        return layers[-1](joined), memory


def _alone(inputs: InputShape) -> Iterator[tuple[int, int]]:
    """Start and end of each stretch of inputs that describes no others."""
    start = 0
    for each in inputs.entities:
        yield start, each.start
        start = each.end
    yield start, inputs.size


ENTITIES_KIND = EntitiesNet()
