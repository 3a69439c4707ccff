"""Stacked nets with one row per agent; several rows may use the same net.

Each row computes with a copy of its net; the gradient of a net is the mean over its rows.
Shapes: P nets of D parameters, R rows, K outputs, M samples, F values of any kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from marless.learning.nets.layout import NetLayout
from marless.learning.nets.stacked import feed_forward


class RowNets:
    """P nets with R rows; `owners` has the index of each row's net."""

    def __init__(self, layout: NetLayout, flat_PD: Tensor, activation: str, owners: Sequence[int]) -> None:
        nets = len(flat_PD)
        self._flat_PD = flat_PD
        self._alone = tuple(owners) == tuple(range(nets))
        self.owners_R = torch.tensor(owners, device=flat_PD.device)
        rows = [[r for r, owner in enumerate(owners) if owner == net] for net in range(nets)]
        self._rows = [torch.tensor(each, dtype=torch.long, device=flat_PD.device) for each in rows]
        # With one row per net the rows are the nets' own parameters: nothing is copied,
        # and there is nothing to refresh.
        self.flat_RD = flat_PD if self._alone else flat_PD[self.owners_R]
        self.net = feed_forward(layout, self.flat_RD, activation)

    def refresh(self) -> None:
        """Copy the nets' parameters to the rows again, after a gradient step."""
        if not self._alone:
            torch.index_select(self._flat_PD, 0, self.owners_R, out=self.flat_RD)

    def backward(self, d_output_RKM: Tensor) -> Tensor:
        """Each net's gradient [P, D], given those at its rows' last outputs; overwritten by the next call."""
        self.net.backward(d_output_RKM)
        return self.mean(self.net.gradient_PD)

    def mean(self, x_RF: Tensor) -> Tensor:
        """Mean over the rows of each net: [R, F] → [P, F]; 0 for nets without rows."""
        if self._alone:
            return x_RF
        rows = [x_RF[index].mean(dim=0) if len(index) else torch.zeros_like(x_RF[0]) for index in self._rows]
        return torch.stack(rows)
