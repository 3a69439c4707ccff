"""Converts a learner's state of one net between a row of tensors and the named arrays of a PolicyState."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.core.errors import CorruptError
from marless.learning.nets.bank import Row
from marless.learning.nets.layout import FloatArray, ParameterLayout, checked

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class StateCodec:
    """Converts the state of nets of one layout.

    A row has `flat` (parameters), `first` and `second` (the optimizer's moments), each float32 [D], and `count` (steps
    taken, float64). With `moments`, it also has the running (Σw, Σwx, Σwx²) of each output's targets, float64 [K, 3];
    with `target`, the target net's parameters, float32 [D], initially equal to the net's.
    """

    prefix: str
    layout: ParameterLayout
    output_gain: float
    """Gain of the initial output layer."""
    acts: bool
    """True if actors need the weights: they are then part of `acting`, otherwise of `learning`."""
    moments: bool = False
    target: bool = False
    biased: bool = False
    """See `ParameterLayout.initial`."""

    def fresh(self, rng: np.random.Generator) -> Row:
        """A row with initial weights and a fresh optimizer state, on the CPU."""
        return self._row(self.layout.initial(rng, self.output_gain, biased=self.biased), {})

    def write(self, row: Row) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]]:
        """Convert a row to (acting, learning) arrays, as copies."""
        # On a CPU `numpy()` shares memory with the stack, which later updates change in
        # place: what is published must not.
        arrays = {key: tensor.cpu().numpy().copy() for key, tensor in row.items()}
        weights: dict[str, NDArray[np.generic]] = {**self.layout.to_arrays(self.prefix, arrays.pop("flat"))}
        # Counted in float64 only because Adam raises its decay rates to powers of it.
        arrays["count"] = arrays["count"].astype(np.int64)
        memory = {f"{self.prefix}.{key}": array for key, array in arrays.items()}
        return (weights, memory) if self.acts else ({}, weights | memory)

    def read(self, acting: Arrays, learning: Arrays) -> Row:
        """The inverse of `write`, on the CPU; raises CorruptError, naming the array that does not fit."""
        flat_D = self.layout.from_arrays(self.prefix, acting if self.acts else learning)
        start = len(self.prefix) + 1
        memory = {key[start:]: array for key, array in learning.items() if key.startswith(f"{self.prefix}.")}
        for key in ("first", "second", "target") if self.target else ("first", "second"):
            checked(memory, key, (self.layout.size,))
        shapes = {"count": (), "moments": (self.layout.outputs, 3)}
        for key in ("count", "moments") if self.moments else ("count",):
            if key not in memory or memory[key].shape != shapes[key]:
                raise CorruptError(f"policy state: {self.prefix}.{key} is missing or not of shape {list(shapes[key])}")
        return self._row(flat_D, memory)

    def _row(self, flat_D: FloatArray, memory: Arrays) -> Row:
        zeros_D = np.zeros_like(flat_D)
        row: dict[str, Tensor] = {
            "flat": torch.tensor(flat_D),
            "first": torch.tensor(memory.get("first", zeros_D)),
            "second": torch.tensor(memory.get("second", zeros_D)),
            "count": torch.tensor(memory.get("count", np.int64(0)), dtype=torch.float64),
        }
        if self.moments:
            nothing = np.zeros((self.layout.outputs, 3))
            row["moments"] = torch.tensor(memory.get("moments", nothing), dtype=torch.float64)
        if self.target:
            row["target"] = torch.tensor(memory.get("target", flat_D))
        return row
