"""What the passes of stacked recurrent nets have in common: a perceptron below, a memory, an output layer.

Shapes as in `marless.learning.nets.gru`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from marless.learning.nets import kernels
from marless.learning.nets.layout import GatedLayout
from marless.learning.nets.stacked import WORKSPACES, StackedMLP, matrices


class Workspace(Protocol):
    """The arrays of a pass that both kinds have."""

    @property
    def hidden(self) -> Tensor:
        """[P, H + 1, M], outputs of the memory after each step; the last row stays 1."""

    @property
    def output(self) -> Tensor:
        """[P, K, M]."""


WorkspaceT = TypeVar("WorkspaceT", bound=Workspace)


class StackedMemory(ABC, Generic[WorkspaceT]):
    """P recurrent nets; see `marless.learning.nets.stacked.Net`. Without `resets`, `forward` raises ValueError."""

    def __init__(self, layout: GatedLayout, flat_PD: Tensor, activation: str) -> None:
        self.layout = layout
        self.gradient_PD = torch.zeros_like(flat_PD)
        self.activation = activation
        below = slice(layout.body.size)
        self._body = StackedMLP(layout.body, flat_PD[:, below], activation, self.gradient_PD[:, below])
        *_, self._memory_PGH, self._output_PKH = matrices(layout, flat_PD)
        *_, self._d_memory_PGH, self._d_output_PKH = matrices(layout, self.gradient_PD)
        self._workspaces: dict[tuple[int, int], WorkspaceT] = {}
        self._keep = flat_PD.new_empty(0, 0, 0, 0)

    @property
    def output_layer(self) -> Tensor:
        return self._output_PKH

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        self._keep = kept(resets, input_PIM)
        work = self._workspace(len(self._keep), self._keep.shape[3])
        self._remember(self._body.forward(input_PIM), work, memory)
        kernels.matmul(self._output_PKH, work.hidden, out=work.output)
        return work.output

    def evaluate(self, input_PIS: Tensor, resets: Tensor | None = None) -> Tensor:
        return self.forward(input_PIS, resets).clone()

    def release(self) -> None:
        self._workspaces.clear()
        self._body.release()

    @abstractmethod
    def _remember(self, input_PGM: Tensor, work: WorkspaceT, memory_PHB: Tensor | None) -> None:
        """Compute what a pass forward leaves, step by step, from the perceptron's outputs."""

    @abstractmethod
    def _made(self, steps: int, copies: int) -> WorkspaceT:
        """New arrays for so many steps and copies."""

    def _workspace(self, steps: int, copies: int) -> WorkspaceT:
        if (steps, copies) not in self._workspaces:
            if len(self._workspaces) == WORKSPACES:
                del self._workspaces[next(iter(self._workspaces))]
            self._workspaces[steps, copies] = self._made(steps, copies)
        return self._workspaces[steps, copies]


def kept(resets: Tensor | None, input_PIM: Tensor) -> Tensor:
    """What each step keeps of the memory before it, 0 where it is reset, [T, 1 or P, 1, B].

    Raises ValueError unless there are resets for as many samples.
    """
    samples = input_PIM.shape[2]
    if resets is None or resets.dim() not in (2, 3) or resets.shape[-2:].numel() != samples:
        found = "none" if resets is None else list(resets.shape)
        raise ValueError(f"nets with memory need resets [T, B] for {samples} samples T·B, got {found}")
    keep = (~resets).to(input_PIM.dtype)
    keep_P1TB = keep[:, None] if keep.dim() == 3 else keep[None, None]
    return keep_P1TB.permute(2, 0, 1, 3)


def by_step(x: Tensor, steps: int) -> tuple[Tensor, ...]:
    """Views [..., B] of the columns of each step."""
    return x.view(*x.shape[:-1], steps, -1).unbind(-2)
