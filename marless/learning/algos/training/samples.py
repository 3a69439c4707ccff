"""The samples of a stack of nets, and their weights.

Shapes: P nets, R rows, S samples per net, M samples of a minibatch, T time steps, B segments.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from marless.learning.nets import kernels


class Samples:
    """Per-sample rows of P nets as one tensor [P, R, S], so that one gather per epoch shuffles all of them.

    For recurrent nets, columns are time-major, [T, segments], and segments stay whole: a minibatch has some of them,
    time-major again, and a row "first" (1 where memory is empty before a step) becomes "resets" bool [P, T, B]. If
    segments go on, "memory" [P, H, B] has the nets' memory before the first step.
    """

    def __init__(self, parts: Mapping[str, Tensor], steps: int | None = None, memory_PHB: Tensor | None = None) -> None:
        """Concatenate the rows of `parts`, [P, rows, S] by name; `steps` is T for recurrent nets, else None.

        `memory_PHB` has all segments, in their order.
        """
        self._table_PRS = torch.cat(list(parts.values()), dim=1)
        self._shuffled_PRS = torch.empty_like(self._table_PRS)
        ends = torch.tensor([part.shape[1] for part in parts.values()]).cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        self._rows = {name: slice(a, b) for name, a, b in zip(parts, starts, ends, strict=True)}
        self._steps, self._memory_PHB = steps, memory_PHB
        self._order_U = torch.empty(0)
        self._views: dict[tuple[int, int], list[dict[str, Tensor]]] = {}

    @property
    def count(self) -> int:
        """Number of units per net that an order permutes: samples, or segments."""
        return self._table_PRS.shape[2] // self.unit

    @property
    def remembers(self) -> bool:
        """True if units are segments, for recurrent nets."""
        return self._steps is not None

    @property
    def unit(self) -> int:
        return self._steps or 1

    def shuffle(self, order_U: Tensor) -> None:
        """Set the order of the units for minibatches."""
        self._order_U = order_U

    def subset(self, index_U: Tensor) -> dict[str, Tensor]:
        """Copies [P, rows, M] of these units, by name."""
        policies, rows, _ = self._table_PRS.shape
        part_PRM = self._table_PRS.new_empty(policies, rows, len(index_U) * self.unit)
        kernels.take_columns(self._table_PRS, self._columns(index_U), out=part_PRM)
        return self._batch(part_PRM, index_U)

    def minibatches(self, count: int) -> list[dict[str, Tensor]]:
        """Views [P, rows, M] of `count` nearly equal parts of the shuffled units, by name."""
        units = len(self._order_U)
        bounds = [(units * i // count, units * (i + 1) // count) for i in range(count)]
        columns_S = torch.cat([self._columns(self._order_U[a:b]) for a, b in bounds])
        kernels.take_columns(self._table_PRS, columns_S, out=self._shuffled_PRS)
        # Segments get new views each time, as their resets and memory are gathered in the new order.
        if self._steps is None and (units, count) in self._views:
            return self._views[units, count]  # of the same buffer, which has the samples in their new order
        batches = [
            self._batch(self._shuffled_PRS[:, :, a * self.unit : b * self.unit], self._order_U[a:b]) for a, b in bounds
        ]
        self._views[units, count] = batches
        return batches

    def _columns(self, units_M: Tensor) -> Tensor:
        """The columns of these units, time-major."""
        if self._steps is None:
            return units_M
        starts_T1 = self.count * torch.arange(self._steps, device=units_M.device).unsqueeze(1)
        return (starts_T1 + units_M).flatten()

    def _batch(self, part_PRM: Tensor, units_U: Tensor) -> dict[str, Tensor]:
        batch = {name: part_PRM[:, rows] for name, rows in self._rows.items()}
        if self._steps is not None:
            batch["resets"] = batch.pop("first").reshape(len(part_PRM), self._steps, -1) > 0
        if self._memory_PHB is not None:
            batch["memory"] = self._memory_PHB[:, :, units_U]
        return batch


def weights(batch: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """Each sample's weight, in the shape of `like`, summing to 1 per net; 0 for samples of dead agents."""
    if "alive" not in batch:
        return torch.full_like(like, like.shape[0] / like.numel())
    alive = batch["alive"].reshape(like.shape)
    dims = tuple(range(1, like.dim()))
    return alive / alive.sum(dim=dims, keepdim=True).clamp_min(1.0)
