"""Where the parameters of a multi-layer perceptron stand in one flat vector, how they start, and what they are called.

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

import numpy as np
from numpy.typing import NDArray

from marless.errors import CorruptError

FloatArray = NDArray[np.float32]


def generator(seed: int, name: str) -> np.random.Generator:
    """A generator that depends on the seed and the name alone, in every process and on every machine."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.default_rng([seed, *np.frombuffer(digest, dtype="<u4").tolist()])


@dataclass(frozen=True)
class Layout:
    """One perceptron as a flat float32 vector: its layers one after another, then `free` further parameters."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    free: int = 0
    """Parameters that no input touches: the log standard deviations of a Gaussian policy."""

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(outputs, inputs + 1) of each layer."""
        sizes = (self.inputs, *self.hidden, self.outputs)
        return tuple((o, i + 1) for i, o in pairwise(sizes))

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """Where each layer's matrix stands in the flat vector."""
        ends = np.cumsum([0, *(o * i for o, i in self.shapes)]).tolist()
        return tuple(slice(a, b) for a, b in pairwise(ends))

    @cached_property
    def size(self) -> int:
        """D, the length of the flat vector."""
        return int(self.spans[-1].stop) + self.free

    def initial(self, rng: np.random.Generator, output_gain: float) -> FloatArray:
        """Orthogonal weights (Saxe et al. 2014), gain √2 in hidden layers, all else 0; float32 [D]."""
        flat_D = np.zeros(self.size, np.float32)
        for layer, (span, (outputs, inputs)) in enumerate(zip(self.spans, self.shapes, strict=True)):
            gain = output_gain if layer == len(self.shapes) - 1 else np.sqrt(2.0)
            flat_D[span].reshape(outputs, inputs)[:, :-1] = gain * _orthogonal(rng, outputs, inputs - 1)
        return flat_D

    def to_arrays(self, prefix: str, flat_D: FloatArray) -> dict[str, FloatArray]:
        """Named copies: `prefix.i.weight` [out, in], `prefix.i.bias` [out] of layer i, and `prefix.free`."""
        arrays = {}
        for i, (span, shape) in enumerate(zip(self.spans, self.shapes, strict=True)):
            matrix = flat_D[span].reshape(shape)
            arrays[f"{prefix}.{i}.weight"] = np.ascontiguousarray(matrix[:, :-1])
            arrays[f"{prefix}.{i}.bias"] = matrix[:, -1].copy()
        if self.free:
            arrays[f"{prefix}.free"] = flat_D[-self.free :].copy()
        return arrays

    def from_arrays(self, prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> FloatArray:
        """The flat vector of named arrays; raises CorruptError, naming the array that is missing or does not fit."""
        flat_D = np.empty(self.size, np.float32)
        for i, (span, shape) in enumerate(zip(self.spans, self.shapes, strict=True)):
            matrix = flat_D[span].reshape(shape)
            matrix[:, :-1] = checked(arrays, f"{prefix}.{i}.weight", (shape[0], shape[1] - 1))
            matrix[:, -1] = checked(arrays, f"{prefix}.{i}.bias", (shape[0],))
        if self.free:
            flat_D[-self.free :] = checked(arrays, f"{prefix}.free", (self.free,))
        return flat_D


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
