"""Modules of torch for jobs of tests: a perceptron with layer normalisation, and one that maps to too many numbers."""

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
