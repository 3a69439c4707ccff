"""The layout of a module of torch in a flat vector: its parameters one after another. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from marless.learning.nets.layout import FloatArray, NetLayout, checked

PARAMETERS, GRAPH = "parameters", "graph"
"""Names of arrays in a state: float32 [D], and the bytes of an ONNX graph, uint8."""


@dataclass(frozen=True)
class ModuleLayout(NetLayout):
    """Parameters in the order of the module's `named_parameters`, each in torch's order, then `free`."""

    numbers: int = 0
    """Numbers of the module's parameters."""
    remembered: int = 0
    """H, numbers that it remembers."""

    @property
    def memory(self) -> int:
        return self.remembered

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """None: a module's parameters are not known as matrices of layers."""
        return ()

    @cached_property
    def size(self) -> int:
        return self.numbers + self.free

    def initial(self, rng: np.random.Generator, output_gain: float, *, biased: bool = False) -> FloatArray:
        """The module's own initial values, as its factory draws them with torch's generator, seeded from `rng`."""
        from marless.learning.nets.modules import initial  # imported here: it imports torch

        return np.concatenate([initial(self, int(rng.integers(2**63))), np.zeros(self.free, np.float32)])

    def to_arrays(self, prefix: str, flat_D: FloatArray) -> dict[str, FloatArray]:
        """Named copies: `prefix.parameters` and `prefix.free`."""
        arrays = {f"{prefix}.{PARAMETERS}": flat_D[: self.numbers].copy()}
        return arrays | ({f"{prefix}.free": flat_D[self.numbers :].copy()} if self.free else {})

    def from_arrays(self, prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> FloatArray:
        found = [checked(arrays, f"{prefix}.{PARAMETERS}", (self.numbers,))]
        if self.free:
            found.append(checked(arrays, f"{prefix}.free", (self.free,)))
        return np.concatenate(found)

    def acting_arrays(self, prefix: str) -> dict[str, NDArray[np.generic]]:
        """`prefix.graph`: what the module computes of inputs and parameters."""
        from marless.learning.nets.modules import exported

        return {f"{prefix}.{GRAPH}": np.frombuffer(exported(self), np.uint8)}
