"""Writes an ONNX graph while a net's definition computes: its arrays record what is done with them.

So every kind of net, also one of another package, has an ONNX form by the definition that actors and learners use
(`marless.learning.nets.net_kind`). Imports `onnx`, which is an extra.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from marless.core.errors import SpecError

BATCH = 1_000_003
"""Stands for the number of copies in shapes: a prime that divides no other length, so that products tell it apart."""
BATCH_NAME = "batch"
ELEMENTS: Mapping[str, int] = {
    "float32": TensorProto.FLOAT,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
"""ONNX's element type of each dtype that inputs and outputs have."""
Number: TypeAlias = "float | NDArray[np.float32]"


class OnnxGraph:
    """Nodes, inputs, outputs and constants of a graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self.constants: dict[str, TensorProto] = {}
        self._count = 0

    def input(self, name: str, dtype: str, shape: tuple[int, ...]) -> Traced:
        """A named input; a length of `BATCH` is free."""
        self.inputs.append(_described(name, dtype, shape))
        return Traced(self, name, shape)

    def output(self, name: str, dtype: str, value: Traced) -> None:
        """Give a value to whoever runs the graph."""
        self.nodes.append(helper.make_node("Identity", [value.name], [name]))
        self.outputs.append(_described(name, dtype, value.shape))

    def constant(self, array: NDArray[Any], name: str = "") -> Traced:
        """An array that the file holds; of one name, the first counts."""
        name = name or f"c{len(self.constants)}"
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return Traced(self, name, array.shape)

    def node(self, operator: str, inputs: Sequence[Traced], shape: Sequence[int], **attributes: Any) -> Traced:
        """What an operator of ONNX computes of its inputs: one array of this shape."""
        name = f"n{self._count}"
        self._count += 1
        self.nodes.append(helper.make_node(operator, [each.name for each in inputs], [name], **attributes))
        return Traced(self, name, tuple(shape))

    def integers(self, *numbers: int) -> Traced:
        """A constant vector of int64, as operators take axes and shapes."""
        return self.constant(np.array(numbers, np.int64))


def _described(name: str, dtype: str, shape: Sequence[int]) -> ValueInfoProto:
    lengths = [BATCH_NAME if length == BATCH else length for length in shape]
    return helper.make_tensor_value_info(name, ELEMENTS[dtype], lengths)


@dataclass(frozen=True, eq=False)
class Traced:
    """An array of a graph. It knows what `Array` of `nets.net_kind` promises to definitions of nets, and their shape.

    Raises SpecError for what has no ONNX form here.
    """

    graph: OnnxGraph
    name: str
    shape: tuple[int, ...]

    __array_ufunc__ = None  # NumPy's numbers leave arithmetic to this class

    def __getattr__(self, name: str) -> object:
        raise SpecError(f"its definition uses `.{name}` of an array, which has no ONNX form; write it with `Ops`")

    def __add__(self, other: Traced | Number) -> Traced:
        return self._with("Add", other)

    def __sub__(self, other: Traced | Number) -> Traced:
        return self._with("Sub", other)

    def __mul__(self, other: Traced | Number) -> Traced:
        return self._with("Mul", other)

    def __truediv__(self, other: Traced | Number) -> Traced:
        return self._with("Div", other)

    def __pow__(self, other: Traced | Number) -> Traced:
        return self._with("Pow", other)

    def __gt__(self, other: Traced | Number) -> Traced:
        return self._with("Greater", other)

    def __lt__(self, other: Traced | Number) -> Traced:
        return self._with("Less", other)

    def __ne__(self, other: object) -> Traced:  # type: ignore[override]  # as NumPy's and torch's arrays: by element
        if not isinstance(other, int | float):
            raise SpecError(f"its definition compares an array with {other!r:.40}, which has no ONNX form")
        return ~self._with("Equal", other)

    __hash__ = object.__hash__

    def __radd__(self, other: Number) -> Traced:
        return self._with("Add", other)

    def __rmul__(self, other: Number) -> Traced:
        return self._with("Mul", other)

    def __rsub__(self, other: Number) -> Traced:
        return self._constant(other)._with("Sub", self)

    def __rtruediv__(self, other: Number) -> Traced:
        return self._constant(other)._with("Div", self)

    def __neg__(self) -> Traced:
        return self.alike("Neg")

    def __invert__(self) -> Traced:
        return self.alike("Not")

    def __getitem__(self, key: object) -> Traced:
        found, axis = self, 0
        for each in key if isinstance(key, tuple) else (key,):
            if each is None:
                found = found._unsqueezed(axis)
            elif isinstance(each, slice):
                found = found._sliced(axis, each)
            elif isinstance(each, int):
                found = found._sliced(axis, slice(each, each + 1 or None))._without(axis)
                axis -= 1
            else:
                raise SpecError(f"its definition takes elements {each!r:.40} of an array, which has no ONNX form")
            axis += 1
        return found

    def alike(self, operator: str, *others: Traced, **attributes: int) -> Traced:
        """What an operator computes of this array, and others, in its shape."""
        return self.graph.node(operator, (self, *others), self.shape, **attributes)

    def swapaxes(self, one: int, other: int) -> Traced:
        """The array with two axes exchanged."""
        order = list(range(len(self.shape)))
        order[one], order[other] = order[other], order[one]
        return self.transposed(order)

    def transposed(self, order: Sequence[int]) -> Traced:
        """The array with its axes in this order."""
        return self.graph.node("Transpose", [self], [self.shape[axis] for axis in order], perm=list(order))

    def reshape(self, *lengths: int) -> Traced:
        """The same numbers in another shape; one length may be −1."""
        known = prod(length for length in lengths if length != -1)
        shape = [prod(self.shape) // known if length == -1 else length for length in lengths]
        if prod(shape) != prod(self.shape):
            raise SpecError(f"its definition reshapes an array of {_told(self.shape)} to {_told(shape)}")
        # What depends on the number of copies is left open; a graph allows that once.
        wanted = self.graph.integers(*(-1 if length % BATCH == 0 else length for length in shape))
        return self.graph.node("Reshape", [self, wanted], shape)

    def mean(self, axis: int) -> Traced:
        """The mean along an axis, which disappears."""
        return self.reduced("ReduceMean", axis)

    def sum(self, axis: int) -> Traced:
        """The sum along an axis, which disappears."""
        return self.reduced("ReduceSum", axis)

    def any(self, axis: int) -> Traced:
        """Where a mask is true anywhere along an axis, which disappears."""
        return self.alike("Cast", to=TensorProto.UINT8).reduced("ReduceMax", axis).alike("Cast", to=TensorProto.BOOL)

    def reduced(self, operator: str, axis: int) -> Traced:
        """What an operator makes of an axis, which disappears."""
        axis %= len(self.shape)
        shape = [length for i, length in enumerate(self.shape) if i != axis]
        return self.graph.node(operator, [self, self.graph.integers(axis)], shape, keepdims=0)

    def _with(self, operator: str, other: Traced | Number) -> Traced:
        second = other if isinstance(other, Traced) else self._constant(other)
        return self.graph.node(operator, [self, second], np.broadcast_shapes(self.shape, second.shape))

    def _constant(self, number: Number) -> Traced:
        return self.graph.constant(np.asarray(number, np.float32))

    def _unsqueezed(self, axis: int) -> Traced:
        shape = [*self.shape[:axis], 1, *self.shape[axis:]]
        return self.graph.node("Unsqueeze", [self, self.graph.integers(axis)], shape)

    def _without(self, axis: int) -> Traced:
        shape = [*self.shape[:axis], *self.shape[axis + 1 :]]
        return self.graph.node("Squeeze", [self, self.graph.integers(axis)], shape)

    def _sliced(self, axis: int, some: slice) -> Traced:
        length = self.shape[axis]
        start, stop, step = some.indices(length)
        if (start, stop, step) == (0, length, 1):
            return self
        if length % BATCH == 0:
            raise SpecError("its definition takes some copies of the environment out of an array: nets treat all alike")
        shape = [*self.shape[:axis], len(range(start, stop, step)), *self.shape[axis + 1 :]]
        borders = [self.graph.integers(number) for number in (start, stop, axis, step)]
        return self.graph.node("Slice", [self, *borders], shape)


def _told(shape: Sequence[int]) -> str:
    return " × ".join(BATCH_NAME if length == BATCH else str(length) for length in shape)
