"""Modules of torch for jobs of tests: with layer normalisation, with memory, and one that maps to too many numbers."""

import torch
from torch import nn


def normed(inputs, hidden, outputs):
    """One hidden layer; torch's generator draws a constant, too."""
    first, *_ = hidden
    return nn.Sequential(nn.Linear(inputs.size, first), nn.LayerNorm(first), nn.GELU(), Scaled(first, outputs))


class Scaled(nn.Module):
    """A layer whose inputs have signs that are not trained."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)
        self.register_buffer("signs", torch.rand(inputs).round() * 2 - 1)

    def forward(self, x):
        return self.layer(x * self.signs)


def wide(inputs, hidden, outputs):
    """It has one output too many."""
    return nn.Linear(inputs.size, outputs + 1)


class _Recalling(nn.Module):
    """It remembers a moving mean of its hidden layer, whose pace depends on what it observes."""

    def __init__(self, inputs, units, outputs):
        super().__init__()
        self.memory = units
        self.below = nn.Linear(inputs, 2 * units)
        self.last = nn.Linear(units, outputs)

    def forward(self, x, memory):
        pace, new = self.below(x).chunk(2, dim=1)
        memory = memory + pace.sigmoid() * (new.tanh() - memory)
        return self.last(memory), memory


def recalling(inputs, hidden, outputs):
    return _Recalling(inputs.size, *hidden, outputs)
