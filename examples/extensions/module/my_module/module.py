"""A module of torch as the net of policies and critics: a residual net whose blocks are normalised."""

from __future__ import annotations

from marless.learning.nets.net_kind import InputShape
from torch import Tensor, nn


class MyModule(nn.Module):
    """Blocks of one width, each of which adds something to what it got."""

    def __init__(self, inputs: int, width: int, blocks: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        block = (nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(blocks))
        self.blocks = nn.ModuleList(block)
        self.last = nn.Linear(width, outputs)
        nn.init.orthogonal_(self.last.weight, 0.01)  # a policy starts close to uniform

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [samples, outputs] of inputs [samples, inputs]."""
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        found: Tensor = self.last(x)
        return found


def make(inputs: InputShape, hidden: tuple[int, ...], outputs: int) -> nn.Module:
    """The module for `inputs.size` numbers; `hidden` is `model.hidden` of the job."""
    width, *more = hidden
    return MyModule(inputs.size, width, len(more), outputs)
