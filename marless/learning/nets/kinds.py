"""Kinds of nets by name. A kind is written once, for actors (NumPy) and learners (torch); see docs/extending/net.md.

The kinds of marless also have twins by hand, which are faster: in `acting_nets` for actors, in `stacked`, `gru` and
`layer_norm` for learners. `check_net` compares them with the definitions here; curvature differentiates these.
Shapes: P nets, I inputs, H units of memory (0 without), K outputs, M columns (samples, or copies of the environment).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

from marless.core.registry import Registry

Array: TypeAlias = Any
"""A NumPy array or a torch tensor, float32; both know +, −, ·, / and slices."""
EPSILON = 1e-5
"""What layer normalisation adds to a variance."""
Layer: TypeAlias = Callable[[Array], Array]
"""W x + b with the weights and the bias of each net, [P, inputs, M] → [P, outputs, M]."""


@dataclass(frozen=True)
class Ops:
    """Element-wise functions, and the joining of arrays, in NumPy or in torch."""

    activate: Callable[[Array], Array]
    """The job's `model.activation`."""
    tanh: Callable[[Array], Array]
    sigmoid: Callable[[Array], Array]
    exp: Callable[[Array], Array]
    join: Callable[[Sequence[Array]], Array]
    """Concatenate [P, Aᵢ, M] along their second axis."""


class NetKind(Protocol):
    """A kind of net: its matrices, its memory, and one step of it."""

    def matrices(self, inputs: int, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        """(outputs, inputs) of each layer, in the order in which `step` gets them; the last one is the output layer.

        `hidden` is the job's `model.hidden`. Initial weights are orthogonal, with gain √2 (the output layer has one of
        its own). Biases are 0; those of hidden layers are random in most off-policy algorithms.
        """

    def memory(self, hidden: tuple[int, ...]) -> int:
        """H, numbers that a net remembers of each episode; 0 for nets without memory."""

    def step(self, ops: Ops, layers: Sequence[Layer], x: Array, memory: Array) -> tuple[Array, Array]:
        """Outputs [P, K, M] and the next memory [P, H, M], for inputs [P, I, M] and the memory, zeros at first.

        Without memory, `memory` is [P, 0, M], and is returned as it came. No array that was given may be changed.
        """


class Perceptron:
    """Dense layers with an activation between them."""

    def matrices(self, inputs: int, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        return [(o, i) for i, o in pairwise((inputs, *hidden, outputs))]

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

    def matrices(self, inputs: int, hidden: tuple[int, ...], outputs: int) -> Sequence[tuple[int, int]]:
        """See `NetKind`; from below and from the memory to the gates r, z, n, then the output layer."""
        units = hidden[-1]
        below = [(o, i) for i, o in pairwise((inputs, *hidden[:-1], 3 * units))]
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


MLP, GRU, LAYER_NORM = "mlp", "gru", "layer_norm"
OURS: dict[str, NetKind] = {MLP: Perceptron(), GRU: GatedUnitsKind(), LAYER_NORM: NormalisedPerceptron()}
KINDS: Registry[NetKind] = Registry("net", "marless.nets", "", dict.fromkeys(OURS, __name__))


def kind_of(name: str) -> NetKind:
    """The kind of this name, of marless or of an entry point "marless.nets"; raises SpecError for an unknown name."""
    return OURS[name] if name in OURS else KINDS.find(name)
