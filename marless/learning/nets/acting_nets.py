"""The nets of policies in NumPy, stacked over the agents of a class, with one batched product per layer.

Shapes: N agents (or 1, if all share their weights), B environment copies, I inputs, H units, K outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError
from marless.learning.envs.base import BoolArray, FloatArray
from marless.learning.nets import acting_images
from marless.learning.nets.kinds import EPSILON, GRU, IMPALA, LAYER_NORM, MLP, NATURE, SIZED_BY_WEIGHTS, kind_of
from marless.learning.nets.layout import GATES, MEMORY, NetLayout, layout_of
from marless.learning.nets.module_kind import is_module
from marless.learning.nets.net_kind import InputShape, Layer, Ops

_PREFIX = "policy"


class ActingNet(ABC):
    """The nets of all agents of a class, evaluated together in the allocated number of environment copies."""

    remembers: bool
    _kept_NHB: FloatArray = np.empty((0, 0, 0), np.float32)  # noqa: N815  # a shape suffix
    """The memory; replaced by `allocate`."""

    @abstractmethod
    def allocate(self, agents: int, batch: int) -> FloatArray:
        """Allocate buffers for `agents` agents and `batch` copies, and reset memory; returns the input buffer.

        That is float32 [N, I + 1, B], to which inputs are written; its last row of ones must not be changed.
        """

    @abstractmethod
    def output(self) -> FloatArray:
        """Evaluate the inputs written, to a new array [N, K, B]; recurrent nets advance by one step."""

    def reset_memory(self, anew_NB: BoolArray) -> None:
        """Reset the memory of these agents in these copies."""
        if self.remembers:
            self._kept_NHB.swapaxes(1, 2)[anew_NB] = 0

    def memory(self) -> FloatArray | None:
        """A copy of the memory, float32 [N, H, B]; None for nets without."""
        return self._kept_NHB.copy() if self.remembers else None

    def recall(self, hidden_NHB: FloatArray) -> None:
        """Continue with this memory, after `allocate`; raises CorruptError if it does not fit."""
        shape = self._kept_NHB.shape
        if hidden_NHB.shape != shape or not np.isfinite(hidden_NHB).all():
            raise CorruptError(f"a memory float32{list(hidden_NHB.shape)} does not fit nets of {list(shape)}")
        self._kept_NHB[...] = hidden_NHB


class ActingPerceptrons(ActingNet):
    """Layers [N, outputs, inputs + 1] with an activation between them."""

    remembers = False

    def __init__(self, layers: Sequence[FloatArray], activation: str) -> None:
        self._layers = layers
        self._activate = ACTIVATE[activation]
        self._hidden: list[tuple[FloatArray, FloatArray, FloatArray]] = []
        """Of each hidden layer: its matrix, what it reads, and where its outputs go."""
        self._last = np.empty((0, 0, 0), np.float32)
        """What the last layer reads."""

    def allocate(self, agents: int, batch: int) -> FloatArray:
        # The last row of each buffer stays 1: it carries the bias (see `Layout`).
        buffers = [np.ones((agents, layer.shape[2], batch), np.float32) for layer in self._layers]
        self._hidden = [
            (layer, source, target[:, :-1])
            for layer, (source, target) in zip(self._layers[:-1], pairwise(buffers), strict=True)
        ]
        self._last = buffers[-1]
        return buffers[0]

    def output(self) -> FloatArray:
        for layer, source, hidden in self._hidden:
            np.matmul(layer, source, out=hidden)
            self._between(hidden)
        result: FloatArray = np.matmul(self._layers[-1], self._last)
        return result

    def _between(self, hidden: FloatArray) -> None:
        """What comes after a hidden layer's product, in place."""
        self._activate(hidden, hidden)


class ActingNormalised(ActingPerceptrons):
    """Perceptrons with layer normalisation; see `nets.layer_norm`."""

    def _between(self, hidden: FloatArray) -> None:
        hidden -= hidden.mean(axis=1, keepdims=True)
        variance_N1B = np.square(hidden).mean(axis=1, keepdims=True)
        hidden /= np.sqrt(variance_N1B + np.float32(EPSILON))
        super()._between(hidden)


class ActingGatedUnits(ActingNet):
    """A recurrent net: a perceptron whose outputs are added to a GRU's gates, and an output layer; see `nets.gru`."""

    remembers = True

    def __init__(self, body: ActingPerceptrons, memory: FloatArray, output: FloatArray) -> None:
        self._body = body
        self._memory, self._output = memory, output
        self._hidden_NHB = np.empty((0, 0, 0), np.float32)

    def allocate(self, agents: int, batch: int) -> FloatArray:
        self._hidden_NHB = np.zeros((agents, self._memory.shape[2], batch), np.float32)
        # A row of ones, as in the perceptrons: it carries the biases of the memory's matrix and of the output layer.
        self._hidden_NHB[:, -1] = 1
        self._kept_NHB = self._hidden_NHB[:, :-1]
        return self._body.allocate(agents, batch)

    def output(self) -> FloatArray:
        gates, recurrent = self._body.output(), np.matmul(self._memory, self._hidden_NHB)
        units, hidden = gates.shape[1] // GATES, self._kept_NHB
        switches, new = gates[:, : 2 * units], gates[:, 2 * units :]
        switches += recurrent[:, : 2 * units]
        _sigmoid(switches)
        new += np.multiply(switches[:, :units], recurrent[:, 2 * units :], out=recurrent[:, 2 * units :])
        np.tanh(new, out=new)
        # n + z (h − n) is (1 − z) n + z h with one product less, and in place.
        hidden -= new
        hidden *= switches[:, units:]
        hidden += new
        result: FloatArray = np.matmul(self._output, self._hidden_NHB)
        return result


class AnyKind(ActingNet):
    """Nets of any kind, by the kind's own definition."""

    def __init__(self, layout: NetLayout, matrices: Sequence[FloatArray], activation: str) -> None:
        self.remembers = layout.memory > 0
        self._kind, self._ops = kind_of(layout.kind), numpy_ops(activation, layout.input_shape)
        self._layers = [Layer(matrix) for matrix in matrices]
        self._inputs, self._units = layout.input_shape, layout.memory
        self._input = np.empty((0, 0, 0), np.float32)

    def allocate(self, agents: int, batch: int) -> FloatArray:
        self._kept_NHB = np.zeros((agents, self._units, batch), np.float32)
        rows = self._inputs.size + 1
        if self._inputs.image:  # each copy's image in one piece: so it is observed, and so its windows are read
            self._input = np.ones((agents, batch, rows), np.float32).swapaxes(1, 2)
        else:
            self._input = np.ones((agents, rows, batch), np.float32)
        return self._input

    def output(self) -> FloatArray:
        found, memory = self._kind.step(self._ops, self._layers, self._input[:, :-1], self._kept_NHB)
        if self.remembers:
            self._kept_NHB = memory
        result: FloatArray = found
        return result


def numpy_ops(activation: str, inputs: InputShape) -> Ops:
    """The operations of kinds, in NumPy.

    A kind may use a layer's result twice, as with torch's operations, so these never write into their argument.
    """
    write = ACTIVATE[activation]

    def activate(x: FloatArray) -> FloatArray:
        out = np.empty_like(x)
        write(x, out)
        return out

    def sigmoid(x: FloatArray) -> FloatArray:
        out = x.copy()
        _sigmoid(out)
        return out

    return Ops(
        inputs=inputs,
        activate=activate,
        tanh=np.tanh,
        sigmoid=sigmoid,
        exp=np.exp,
        join=partial(np.concatenate, axis=1),
        largest=lambda x, axis: x.max(axis),
        choose=lambda mask, x, otherwise: np.where(mask, x, np.float32(otherwise)),
        images=inputs.images,
        convolve=acting_images.convolve,
        pool=acting_images.pool,
    )


def stacked(
    owners: Sequence[Mapping[str, NDArray[np.generic]]],
    *,
    kind: str,
    activation: str,
    inputs: InputShape,
    outputs: int,
    free: int,
    hidden: tuple[int, ...] = (),
) -> tuple[ActingNet, FloatArray]:
    """Stack the nets of policy states; also returns their free parameters [N, free].

    Hidden layers of `SIZED_BY_WEIGHTS` have the sizes of the first state's weights; for other kinds, `hidden` has them.
    Raises CorruptError if a state does not fit, or is one of a kind that is not installed.
    """
    if is_module(kind):
        from marless.learning.nets import acting_module  # imported here: it imports onnxruntime

        return acting_module.stacked(owners, inputs, outputs, free)
    by_weights = kind in SIZED_BY_WEIGHTS
    if not by_weights and not hidden:
        raise CorruptError(f"the policy state does not say how many units its {kind} net has")
    units = hidden_of(owners[0], kind) if by_weights else hidden
    try:
        layout = layout_of(kind, inputs, units, outputs, free)
    except SpecError as error:
        raise CorruptError(f"policy state: {error}") from None
    flat_ND = np.stack([layout.from_arrays(_PREFIX, arrays) for arrays in owners])
    parts = zip(layout.spans, layout.shapes, strict=True)
    matrices = [flat_ND[:, span].reshape(len(owners), *shape) for span, shape in parts]
    free_NF = flat_ND[:, layout.size - free :].copy()  # a view would keep all weights, which some nets hold otherwise
    if kind == GRU:
        *body, memory, output = matrices
        return ActingGatedUnits(ActingPerceptrons(body, activation), memory, output), free_NF
    if kind in (MLP, LAYER_NORM):
        return (ActingNormalised if kind == LAYER_NORM else ActingPerceptrons)(matrices, activation), free_NF
    if kind in (NATURE, IMPALA) and activation == "relu":
        # Imported here: few actors see images.
        from marless.learning.nets import acting_convolutions, compiled_images

        if loaded := compiled_images.library():
            return acting_convolutions.ActingConvolutions(loaded, layout, matrices), free_NF
    return AnyKind(layout, matrices, activation), free_NF


def hidden_of(arrays: Mapping[str, NDArray[np.generic]], kind: str) -> tuple[int, ...]:
    """Units of each hidden layer of a kind of `SIZED_BY_WEIGHTS`, from its weights, which `Layout.from_arrays` checks.

    Raises CorruptError if there are no weights.
    """
    depth = sum(name.endswith(".weight") and not name.endswith(f"{MEMORY}.weight") for name in arrays)
    weights = [arrays.get(f"{_PREFIX}.{i}.weight") for i in range(depth - 1)]
    rows = [0 if weight is None or weight.ndim != 2 else int(weight.shape[0]) for weight in weights]
    if depth < (2 if kind == GRU else 1) or not all(rows):
        raise CorruptError("the policy state holds no weights to act with")
    return (*rows[:-1], rows[-1] // GATES) if kind == GRU else tuple(rows)


def _sigmoid(x: FloatArray) -> None:
    """x ← σ(x), as in `marless.learning.nets.kernels`."""
    x *= 0.5
    np.tanh(x, out=x)
    x += 1
    x *= 0.5


ACTIVATE: dict[str, Callable[[FloatArray, FloatArray], object]] = {
    "tanh": np.tanh,
    "relu": lambda x, out: np.maximum(x, 0, out=out),
}
"""Activation → what writes φ(x) to `out`, its second argument; its twin for learners is in `nets.kernels`."""
