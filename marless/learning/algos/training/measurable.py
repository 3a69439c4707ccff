"""What can be measured: the objective of a stack of policies, over samples that can be divided.

Shapes: P policies, D parameters, M samples, S units (samples, or segments for nets with memory).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from marless.learning.curvature import lanczos

Batch = Mapping[str, Tensor]
"""Samples of P nets by name, columns last: "features" [P, I, M]; "alive" [P, 1, M], weights of samples relative to 1,
if they are not all equal; all others depend on the family."""


class Measurable(Protocol):
    """A stack of P nets and the objective of each, at their present parameters."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """ "flat" [P, D], the parameters."""
        ...

    def score_gradient(self, batch: Batch) -> Tensor:
        """The gradient [P, D] of the objective, a weighted mean over a batch; overwritten by the next call."""
        ...

    def hessian(self, batch: Batch) -> lanczos.Product:
        """Products of vectors [P, D] with the objective's Hessian over a batch."""
        ...


class Measured(Protocol):
    """The samples that a stack of nets has in a round, the same number for each net."""

    count: int
    """Number of units that an order permutes: samples, or sequences of them."""
    unit: int
    """Number of samples per unit: 1, or the time steps of a sequence."""

    def subset(self, index_M: Tensor) -> Batch:
        """Copies of these units."""
        ...

    def shuffle(self, order_S: Tensor) -> None:
        """Set the order of the units for minibatches."""
        ...

    def minibatches(self, count: int) -> Sequence[Batch]:
        """Split the shuffled units into `count` nearly equal parts."""
        ...
