"""Kinds of nets by name, and those of vectors: perceptrons, and recurrent nets.

Most have twins by hand, which are faster: in `acting_nets` for actors, in `stacked`, `gru` and `layer_norm` for
learners. `check_net` compares them with the definitions here; curvature differentiates these.
Shapes are those of `nets.net_kind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, TypeAlias

from marless.core.registry import Registry
from marless.learning.nets.net_kind import Array, InputShape, Layer, NetKind, Ops

Precision: TypeAlias = Literal["float32", "bfloat16"]
"""In what torch computes the gradients of nets that it differentiates: bfloat16 only where that is precise enough."""
EPSILON = 1e-5
"""What layer normalisation adds to a variance."""


class Perceptron:
    """Dense layers with an activation between them."""

    def matrices(self, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        return [(o, i) for i, o in pairwise((inputs.size, *hidden, outputs))]

    def memory(self, hidden: tuple[int, ...]) -> int:
        return 0

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        for layer in layers[:-1]:
            x = ops.activate(layer(x))
        return layers[-1](x), memory


class NormalisedPerceptron(Perceptron):
    """A perceptron with layer normalisation, without gain and bias, before each activation; see `nets.layer_norm`."""

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        for layer in layers[:-1]:
            z = layer(x)
            z = z - z.mean(1)[:, None]
            x = ops.activate(z * ((z * z).mean(1)[:, None] + EPSILON) ** -0.5)
        return layers[-1](x), memory


class GatedUnitsKind:
    """Dense layers, then gated recurrent units, then the output layer; formulas in `marless.learning.nets.gru`."""

    def matrices(self, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        """See `NetKind`; from below and from the memory to the gates r, z, n, then the output layer."""
        units = hidden[-1]
        below = [(o, i) for i, o in pairwise((inputs.size, *hidden[:-1], 3 * units))]
        return [*below, (3 * units, units), (outputs, units)]

    def memory(self, hidden: tuple[int, ...]) -> int:
        return hidden[-1]

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        *below, gates, recurrent, last = layers
        for layer in below:
            x = ops.activate(layer(x))
        units = memory.shape[1]
        of_input, of_memory = gates(x), recurrent(memory)
        switches = ops.sigmoid(of_input[:, : 2 * units] + of_memory[:, : 2 * units])
        new = ops.tanh(of_input[:, 2 * units :] + switches[:, :units] * of_memory[:, 2 * units :])
        memory = new + switches[:, units:] * (memory - new)
        return last(memory), memory


class LongShortTermMemory:
    """Dense layers, then long short-term memory, then the output layer; it remembers its outputs h, then its cells c.

    c' = σ(f) ⊙ c + σ(i) ⊙ tanh g and h' = σ(o) ⊙ tanh c', with the gates (i, f, g, o) = W x + U h, in torch's order.
    Source: Hochreiter & Schmidhuber 1997, with the forget gate f of Gers, Schmidhuber & Cummins 2000.
    """

    def matrices(self, inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        """See `NetKind`; from below and from h to the gates, then the output layer."""
        units = hidden[-1]
        below = [(o, i) for i, o in pairwise((inputs.size, *hidden[:-1], 4 * units))]
        return [*below, (4 * units, units), (outputs, units)]

    def memory(self, hidden: tuple[int, ...]) -> int:
        return 2 * hidden[-1]

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        *below, gates, recurrent, last = layers
        for layer in below:
            x = ops.activate(layer(x))
        units = memory.shape[1] // 2
        found = gates(x) + recurrent(memory[:, :units])
        add_and_keep = ops.sigmoid(found[:, : 2 * units])
        new = ops.tanh(found[:, 2 * units : 3 * units])
        cells = add_and_keep[:, units:] * memory[:, units:] + add_and_keep[:, :units] * new
        output = ops.sigmoid(found[:, 3 * units :]) * ops.tanh(cells)
        return last(output), ops.join([output, cells])


MLP, GRU, LSTM, LAYER_NORM = "mlp", "gru", "lstm", "layer_norm"
OURS: dict[str, NetKind] = {
    MLP: Perceptron(),
    GRU: GatedUnitsKind(),
    LSTM: LongShortTermMemory(),
    LAYER_NORM: NormalisedPerceptron(),
}
SIZED_BY_WEIGHTS = (MLP, GRU, LAYER_NORM)
"""Kinds of which the hidden layers and the inputs are known from the sizes of the weights, so that states tell neither.
"""
NATURE, IMPALA, ENTITIES = "nature", "impala", "entities"
CONVOLUTIONAL = (NATURE, IMPALA)
"""Kinds that see images by `Ops.images` alone, which need not find them among the inputs."""
OF_FORMS = (*CONVOLUTIONAL, ENTITIES)
"""Kinds that read images or entities, and no plain vectors."""
_OF_IMAGES = "marless.learning.nets.convolutional"
KINDS: Registry[NetKind] = Registry(
    "net",
    "marless.nets",
    "",
    {
        **dict.fromkeys(OURS, __name__),
        NATURE: f"{_OF_IMAGES}:NATURE_KIND",
        IMPALA: f"{_OF_IMAGES}:IMPALA_KIND",
        ENTITIES: "marless.learning.nets.entities:ENTITIES_KIND",
    },
)


def is_by_hand(name: str) -> bool:
    """True if learners have the backward pass of this kind by hand, in float32; others are differentiated by torch."""
    return name in OURS


def kind_of(name: str) -> NetKind:
    """The kind of this name, of marless or of an entry point "marless.nets"; raises SpecError for an unknown name.

    Modules of torch are no kinds; see `nets.module_kind`.
    """
    return OURS[name] if name in OURS else KINDS.find(name)
