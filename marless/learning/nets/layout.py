"""The layout of a net's parameters in one flat vector: positions, initial values and names.

A layer is one matrix [outputs, inputs + 1] whose last column is the bias: nets take their input *feature-major*,
[features + 1, samples], with a last row of ones, so that a layer is one matrix product and so is its gradient.
NumPy only: actors and learners read the same vector through the same layout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError
from marless.learning.nets.kinds import GRU, LSTM, MLP, kind_of
from marless.learning.nets.module_kind import is_module
from marless.learning.nets.net_kind import InputShape

if TYPE_CHECKING:
    from marless.learning.envs.base import Entities
    from marless.learning.nets.model import ModelSpec

FloatArray = NDArray[np.float32]
GATES = 3
"""Number of gates of a gated recurrent unit: r, z and n."""
MEMORY = ".memory"
"""Suffix of the name of the matrix from memory to gates."""


def generator(seed: int, name: str) -> np.random.Generator:
    """A random generator that depends on the seed and the name alone, also across processes and machines."""
    # Not `hash`, which differs from process to process; and a byte order that is the same on every machine.
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest, dtype="<u4").tolist()])


class ParameterLayout(Protocol):
    """The positions of parameters in a flat vector."""

    @property
    def outputs(self) -> int:
        """K, number of outputs."""

    @property
    def size(self) -> int:
        """D, the length of the flat vector."""

    def initial(self, rng: np.random.Generator, output_gain: float, *, biased: bool = False) -> FloatArray:
        """Initial parameters, float32 [D]: orthogonal weights (Saxe et al. 2014), all else 0.

        With `biased`, biases below the output layer are uniform in ± 1/√inputs, as those of torch's `Linear`.
        """

    def to_arrays(self, prefix: str, flat_D: FloatArray) -> dict[str, FloatArray]:
        """Named copies: `prefix.i.weight` [out, in] and `prefix.i.bias` [out] of layer i, and `prefix.free`."""

    def from_arrays(self, prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> FloatArray:
        """The inverse of `to_arrays`; raises CorruptError, naming the array that is missing or does not fit."""


@dataclass(frozen=True)
class NetLayout:
    """The layout of a net of any kind: matrices [outputs, inputs + 1], one after another, then `free` parameters."""

    inputs: int
    """I, number of inputs without the row of ones."""
    hidden: tuple[int, ...]
    """Units of each hidden layer; in a recurrent net, the last one is the recurrent layer."""
    outputs: int
    """K, number of outputs."""
    free: int = 0
    """Number of parameters outside of all layers: the log standard deviations of a Gaussian policy."""
    kind: str = MLP
    """The kind of the net, see `marless.learning.nets.kinds`."""
    image: tuple[int, int, int] | None = None
    """The image that the inputs begin with, and the entities among them; see `InputShape`."""
    entities: tuple[Entities, ...] = ()

    @property
    def input_shape(self) -> InputShape:
        """What the net reads."""
        return InputShape(self.inputs, self.image, self.entities)

    @property
    def memory(self) -> int:
        """H, numbers that the net remembers of each episode; 0 for nets without memory."""
        return kind_of(self.kind).memory(self.hidden)

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs + 1) of each matrix, the output layer's last.

        Raises SpecError for inputs that the kind cannot read, and for a kind whose output layer has other outputs.
        """
        declared = tuple(kind_of(self.kind).matrices(self.input_shape, self.hidden, self.outputs))
        if not declared or declared[-1][0] != self.outputs:
            raise SpecError(
                f"net {self.kind}: the last of its matrices must have {self.outputs} outputs, it declares {declared}"
            )
        return tuple((o, i + 1) for o, i in declared)

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each matrix among named arrays; they are numbered from 0."""
        return tuple(map(str, range(len(self.shapes))))

    def _weights(self, matrix: int, rng: np.random.Generator, output_gain: float) -> NDArray[np.float64]:
        """Initial weights of a matrix, [outputs, inputs]: orthogonal, with gain √2 below the output layer."""
        outputs, inputs = self.shapes[matrix]
        gain = output_gain if matrix == len(self.shapes) - 1 else float(np.sqrt(2.0))
        return gain * _orthogonal(rng, outputs, inputs - 1)

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """Position of each matrix in the flat vector."""
        ends = np.cumsum([0, *(o * i for o, i in self.shapes)]).tolist()
        return tuple(slice(a, b) for a, b in pairwise(ends))

    @cached_property
    def size(self) -> int:
        """D, the length of the flat vector."""
        return int(self.spans[-1].stop) + self.free

    def output_layer(self, flat_D: FloatArray) -> FloatArray:
        """The last matrix, [K, inputs + 1], as a view of the flat vector."""
        return flat_D[self.spans[-1]].reshape(self.shapes[-1])

    def acting_arrays(self, prefix: str) -> dict[str, NDArray[np.generic]]:
        """What actors need beside the weights, equal in all versions; {} for all kinds but modules of torch."""
        return {}

    def initial(self, rng: np.random.Generator, output_gain: float, *, biased: bool = False) -> FloatArray:
        flat_D = np.zeros(self.size, np.float32)
        for i, (span, shape) in enumerate(zip(self.spans, self.shapes, strict=True)):
            matrix = flat_D[span].reshape(shape)
            matrix[:, :-1] = self._weights(i, rng, output_gain)
            if biased and i < len(self.shapes) - 1:
                matrix[:, -1] = rng.uniform(-1.0, 1.0, shape[0]) / np.sqrt(shape[1] - 1)
        return flat_D

    def to_arrays(self, prefix: str, flat_D: FloatArray) -> dict[str, FloatArray]:
        arrays = {}
        for name, span, shape in zip(self.names, self.spans, self.shapes, strict=True):
            matrix = flat_D[span].reshape(shape)
            arrays[f"{prefix}.{name}.weight"] = np.ascontiguousarray(matrix[:, :-1])
            arrays[f"{prefix}.{name}.bias"] = matrix[:, -1].copy()
        if self.free:
            arrays[f"{prefix}.free"] = flat_D[-self.free :].copy()
        return arrays

    def from_arrays(self, prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> FloatArray:
        parts = [  # all are checked before the vector is allocated, because untrusted sizes may be huge
            (
                checked(arrays, f"{prefix}.{name}.weight", (shape[0], shape[1] - 1)),
                checked(arrays, f"{prefix}.{name}.bias", (shape[0],)),
            )
            for name, shape in zip(self.names, self.shapes, strict=True)
        ]
        flat_D = np.empty(self.size, np.float32)
        for (weight, bias), span, shape in zip(parts, self.spans, self.shapes, strict=True):
            matrix = flat_D[span].reshape(shape)
            matrix[:, :-1], matrix[:, -1] = weight, bias
        if self.free:
            flat_D[-self.free :] = checked(arrays, f"{prefix}.free", (self.free,))
        return flat_D


class Layout(NetLayout):
    """The layout of a perceptron: one matrix per layer."""


@dataclass(frozen=True)
class GatedLayout(NetLayout):
    """The layout of a recurrent net: dense layers, then units with gates and a memory, then the output layer.

    The last hidden layer i of H units has two matrices: `i`, from the layer below to the gates, H rows for each, and
    `i.memory`, from the units' last outputs to the same gates: the weights and biases of torch's module, row by row.
    """

    gates: ClassVar[int]

    @property
    def units(self) -> int:
        """H, number of recurrent units."""
        return self.hidden[-1]

    @cached_property
    def body(self) -> Layout:
        """The layers below the recurrence: a perceptron whose outputs are added to the gates; the first parameters."""
        return Layout(self.inputs, self.hidden[:-1], self.gates * self.units)

    @property
    def names(self) -> tuple[str, ...]:
        """Layers are numbered from 0."""
        last = len(self.hidden) - 1
        return (*self.body.names, f"{last}{MEMORY}", str(last + 1))

    def _weights(self, matrix: int, rng: np.random.Generator, output_gain: float) -> NDArray[np.float64]:
        if matrix < len(self.hidden) - 1 or matrix == len(self.shapes) - 1:
            return super()._weights(matrix, rng, output_gain)
        inputs = self.shapes[matrix][1] - 1
        return np.concatenate([_orthogonal(rng, self.units, inputs) for _ in range(self.gates)])


@dataclass(frozen=True)
class GRULayout(GatedLayout):
    """The layout of gated recurrent units (Cho et al. 2014), with gates r, z and n.

    As in torch.nn.GRU, and unlike in Cho et al., r is applied after the product with the memory's matrix, not before.
    """

    kind: str = GRU
    gates: ClassVar[int] = GATES


@dataclass(frozen=True)
class LSTMLayout(GatedLayout):
    """The layout of long short-term memory, with gates i, f, g and o; see `kinds.LongShortTermMemory`."""

    kind: str = LSTM
    gates: ClassVar[int] = 4

    def initial(self, rng: np.random.Generator, output_gain: float, *, biased: bool = False) -> FloatArray:
        """Cells keep most of what they hold at first: the forget gate has a bias of 1.

        Source: Jozefowicz, Zaremba & Sutskever 2015, "An empirical exploration of recurrent network architectures".
        """
        flat_D = super().initial(rng, output_gain, biased=biased)
        below = len(self.hidden) - 1
        bias = flat_D[self.spans[below]].reshape(self.shapes[below])[:, -1]
        bias[self.units : 2 * self.units] += 1
        return flat_D


_LAYOUTS: dict[str, type[NetLayout]] = {MLP: Layout, GRU: GRULayout, LSTM: LSTMLayout}


def layout(inputs: InputShape | int, model: ModelSpec, outputs: int, free: int = 0) -> NetLayout:
    """The layout of a net of the kind and hidden layers of a job's `model`; see `layout_of`.

    Also raises SpecError for a module that remembers other numbers than `model.module_memory`: actors and the record of
    what they remember go by the job.
    """
    made = layout_of(model.kind, inputs, tuple(model.hidden), outputs, free)
    if made.memory != model.memory:
        raise SpecError(
            f"net {model.kind} remembers {made.memory} numbers of each episode, and model.module_memory is "
            f"{model.memory}; set model.module_memory: {made.memory}"
        )
    return made


def layout_of(kind: str, inputs: InputShape | int, hidden: tuple[int, ...], outputs: int, free: int = 0) -> NetLayout:
    """The layout of a net, whose inputs are a vector if only their number is given.

    Raises SpecError for an unknown kind, and for inputs that the kind cannot read.
    """
    shape = InputShape(inputs) if isinstance(inputs, int) else inputs
    if is_module(kind):
        from marless.learning.nets.modules import layout_of_module  # imported here: it imports torch

        return layout_of_module(kind, shape, hidden, outputs, free)
    if kind in _LAYOUTS:
        return _LAYOUTS[kind](shape.size, hidden, outputs, free)
    made = NetLayout(shape.size, hidden, outputs, free, kind, shape.image, shape.entities)
    _ = made.shapes  # which raises: before work is lost
    return made


def checked(arrays: Mapping[str, NDArray[np.generic]], name: str, shape: tuple[int, ...]) -> FloatArray:
    """`arrays[name]` if it is float32 of this shape; raises CorruptError otherwise."""
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype != np.float32:
        found = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise CorruptError(f"policy state: {name} is {found}, expected float32{list(shape)}")
    return array.astype(np.float32, copy=False)


def _orthogonal(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diag(r))  # makes the decomposition unique, and the distribution uniform (Mezzadri 2007)
    return q if rows >= columns else q.T


@dataclass(frozen=True)
class NumberLayout:
    """The layout of one learned number, such as the weight of an entropy."""

    start: float
    """Its initial value."""
    outputs: int = 1
    size: int = 1

    def initial(self, rng: np.random.Generator, output_gain: float, *, biased: bool = False) -> FloatArray:
        return np.array([self.start], np.float32)

    def to_arrays(self, prefix: str, flat_D: FloatArray) -> dict[str, FloatArray]:
        """A named copy: `prefix.number` [1]."""
        return {f"{prefix}.number": flat_D.copy()}

    def from_arrays(self, prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> FloatArray:
        return checked(arrays, f"{prefix}.number", (1,))


@dataclass(frozen=True)
class MixingLayout:
    """The layout of QMIX's mixer: four hypernetworks of the global state, which compute its weights, one after another.

    Source: Rashid et al. 2018, §4.2 and appendix C.
    """

    inputs: int
    """S, size of the global state."""
    agents: int
    embed: int
    """Units of the mixer's hidden layer."""
    hypernet: int
    """Hidden units of the hypernetworks for weights."""
    outputs: int = 1

    @cached_property
    def nets(self) -> dict[str, Layout]:
        """The hypernetworks of the first layer's weights [agents · embed] and bias, and of the second layer's."""
        return {
            "weight1": Layout(self.inputs, (self.hypernet,), self.agents * self.embed),
            "bias1": Layout(self.inputs, (), self.embed),
            "weight2": Layout(self.inputs, (self.hypernet,), self.embed),
            "bias2": Layout(self.inputs, (self.embed,), 1),
        }

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Position of each net's parameters in the flat vector."""
        ends = np.cumsum([0, *(each.size for each in self.nets.values())]).tolist()
        return {name: slice(a, b) for name, (a, b) in zip(self.nets, pairwise(ends), strict=True)}

    @property
    def size(self) -> int:
        """D, the length of the flat vector."""
        return sum(each.size for each in self.nets.values())

    def initial(self, rng: np.random.Generator, output_gain: float, *, biased: bool = False) -> FloatArray:
        return np.concatenate([each.initial(rng, output_gain, biased=biased) for each in self.nets.values()])

    def to_arrays(self, prefix: str, flat_D: FloatArray) -> dict[str, FloatArray]:
        """Named copies: `prefix.weight1.0.weight` …"""
        parts = (each.to_arrays(f"{prefix}.{name}", flat_D[self.spans[name]]) for name, each in self.nets.items())
        return {name: array for part in parts for name, array in part.items()}

    def from_arrays(self, prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> FloatArray:
        return np.concatenate([each.from_arrays(f"{prefix}.{name}", arrays) for name, each in self.nets.items()])
