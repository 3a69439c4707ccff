"""A net's parameters as one flat vector and as named arrays, for nets of any kind, by the names of the arrays alone.

The flat vector is that of `marless.learning.nets.layout`: a matrix [outputs, inputs + 1] for each weight and bias,
those of a memory after their layer, then free parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.core.state import Arrays
from marless.learning.nets.layout import MEMORY, FloatArray, checked

_WEIGHT, _BIAS, _FREE = ".weight", ".bias", ".free"


@dataclass(frozen=True)
class Matrices:
    """The matrices of one net in the order of its flat vector."""

    prefix: str
    shapes: Mapping[str, tuple[int, int]]
    """(outputs, inputs + 1) by name, such as `policy.0`."""
    free: int
    """Number of further parameters, at the end."""

    @classmethod
    def of(cls, prefix: str, arrays: Arrays) -> Matrices:
        """The arrays of the net whose named arrays begin with `prefix.`; raises CorruptError if there are none."""
        names = [name.removesuffix(_WEIGHT) for name in arrays if name.startswith(f"{prefix}.")]
        names = [name for name in names if name + _WEIGHT in arrays]
        shapes: dict[str, tuple[int, int]] = {}
        for name in sorted(names, key=lambda each: _place(each, prefix)):
            shape = arrays[name + _WEIGHT].shape
            if len(shape) != 2:
                raise CorruptError(f"policy state: {name}{_WEIGHT} is of shape {list(shape)}, expected two axes")
            shapes[name] = (shape[0], shape[1] + 1)
        if not shapes:
            raise CorruptError(f"policy state: it has no weights of {prefix!r}")
        free = arrays.get(prefix + _FREE)
        return cls(prefix, shapes, 0 if free is None else free.size)

    @property
    def size(self) -> int:
        """D, the length of the flat vector."""
        return sum(outputs * inputs for outputs, inputs in self.shapes.values()) + self.free

    @property
    def outputs(self) -> int:
        """Outputs of the net's last layer."""
        return list(self.shapes.values())[-1][0]

    def flat(self, arrays: Arrays) -> FloatArray:
        """The flat vector of named arrays, as a copy; raises CorruptError for one that is missing or does not fit."""
        flat_D = np.empty(self.size, np.float32)
        start = 0
        for name, (outputs, inputs) in self.shapes.items():
            matrix = flat_D[start : start + outputs * inputs].reshape(outputs, inputs)
            matrix[:, :-1] = checked(arrays, name + _WEIGHT, (outputs, inputs - 1))
            matrix[:, -1] = checked(arrays, name + _BIAS, (outputs,))
            start += outputs * inputs
        if self.free:
            flat_D[start:] = checked(arrays, self.prefix + _FREE, (self.free,))
        return flat_D

    def named(self, flat_D: FloatArray) -> dict[str, NDArray[np.generic]]:
        """The inverse of `flat`, as copies."""
        arrays: dict[str, NDArray[np.generic]] = {}
        start = 0
        for name, (outputs, inputs) in self.shapes.items():
            matrix = flat_D[start : start + outputs * inputs].reshape(outputs, inputs)
            arrays[name + _WEIGHT] = np.ascontiguousarray(matrix[:, :-1])
            arrays[name + _BIAS] = matrix[:, -1].copy()
            start += outputs * inputs
        if self.free:
            arrays[self.prefix + _FREE] = flat_D[start:].copy()
        return arrays

    def output_layer(self, flat_D: FloatArray) -> FloatArray:
        """The last matrix, [outputs, inputs + 1], as a view of the flat vector."""
        outputs, inputs = list(self.shapes.values())[-1]
        end = self.size - self.free
        return flat_D[end - outputs * inputs : end].reshape(outputs, inputs)


def _place(name: str, prefix: str) -> tuple[int, bool]:
    """Order of a matrix: layers by number, the matrix of a layer's memory after that of the layer."""
    number = name.removeprefix(f"{prefix}.").removesuffix(MEMORY)
    if not number.isdecimal():
        raise CorruptError(f"policy state: {name} is no layer of a net whose gradients can be aggregated")
    # As a number, because as text layer 10 would come before layer 2.
    return int(number), name.endswith(MEMORY)
