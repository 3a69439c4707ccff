"""The parameter layout of QMIX's mixer in one flat vector: four hypernetworks of the global state compute its weights.

Source: Rashid et al. 2018, §4.2 and appendix C. NumPy only, as `marless.learning.nets.layout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from marless.learning.nets.layout import FloatArray, Layout


@dataclass(frozen=True)
class MixingLayout:
    """The layout of the mixer: its hypernetworks one after another. See `marless.learning.nets.layout.NetLayout`."""

    inputs: int
    """S, size of the global state."""
    agents: int
    embed: int
    """Units of the mixer's hidden layer."""
    hypernet: int
    """Hidden units of the hypernetworks for weights."""
    outputs: int = 1
    free: int = 0

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of the mixer's hidden layer."""
        return (self.embed,)

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
        """Initial parameters of all nets, float32 [D]."""
        return np.concatenate([each.initial(rng, output_gain, biased=biased) for each in self.nets.values()])

    def to_arrays(self, prefix: str, flat_D: FloatArray) -> dict[str, FloatArray]:
        """Named copies: `prefix.weight1.0.weight` …"""
        arrays: dict[str, FloatArray] = {}
        for name, each in self.nets.items():
            arrays |= each.to_arrays(f"{prefix}.{name}", flat_D[self.spans[name]])
        return arrays

    def from_arrays(self, prefix: str, arrays: Mapping[str, NDArray[np.generic]]) -> FloatArray:
        """The inverse of `to_arrays`; raises CorruptError, naming the array that is missing or does not fit."""
        return np.concatenate([each.from_arrays(f"{prefix}.{name}", arrays) for name, each in self.nets.items()])
