"""Modules of torch as another package brings them, right and wrong ones, by the names that follow `module/`."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from marless.core.errors import SpecError
from marless.learning.nets.module_kind import ModuleFactory


def perceptron(inputs, hidden, outputs):
    first, *_ = hidden
    return nn.Sequential(nn.Linear(inputs.size, first), nn.Tanh(), nn.Linear(first, outputs))


class Attentive(nn.Module):
    """Attention over pieces of a layer, a constant that a factory draws, and a weight used twice."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.width = hidden[-1]
        self.first = nn.Linear(inputs.size, 3 * self.width)
        self.attention = nn.MultiheadAttention(self.width, 2, batch_first=True)
        self.norm = nn.LayerNorm(self.width)
        self.last = nn.Linear(self.width, outputs)
        self.twice = self.first.bias
        self.register_buffer("signs", torch.rand(self.width).round() * 2 - 1)

    def forward(self, x):
        parts = torch.relu(self.first(x) + self.twice).view(x.shape[0], 3, self.width) * self.signs
        found, _ = self.attention(parts, parts, parts, need_weights=False)
        return self.last(self.norm(found.mean(1)))


class Pictures(nn.Module):
    """Convolutions of images; other inputs join after them."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        channels, _, _ = inputs.image
        self.pixels = nn.Sequential(
            nn.Conv2d(channels, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten()
        )
        size = self.pixels(torch.zeros(1, *inputs.image)).shape[1] + inputs.size - inputs.pixels
        self.last = nn.Sequential(nn.Linear(size, hidden[0]), nn.GELU(), nn.Linear(hidden[0], outputs))

    def forward(self, images, others=None):
        found = self.pixels(images)
        return self.last(found if others is None else torch.cat([found, others], 1))


class Gated(nn.Module):
    """Gated recurrent units, as those of `model.recurrent: gru`."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        (self.memory,) = hidden
        self.of_input = nn.Linear(inputs.size, 3 * self.memory)
        self.of_memory = nn.Linear(self.memory, 3 * self.memory)
        self.last = nn.Linear(self.memory, outputs)

    def forward(self, x, memory):
        (r, z, n), (of_r, of_z, of_n) = self.of_input(x).chunk(3, dim=1), self.of_memory(memory).chunk(3, dim=1)
        n = torch.tanh(n + torch.sigmoid(r + of_r) * of_n)
        memory = n + torch.sigmoid(z + of_z) * (memory - n)
        return self.last(memory), memory


class Films(nn.Module):
    """Images, then torch's own cell; what it remembers is in two layers."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.memory = 2 * hidden[0]
        self.seen = Pictures(inputs, hidden, hidden[0])
        self.cells = nn.ModuleList(nn.GRUCell(hidden[0], hidden[0]) for _ in range(2))
        self.last = nn.Linear(hidden[0], outputs)

    def forward(self, *given):
        *images, memory = given
        x, next_memory = self.seen(*images), []
        for cell, kept in zip(self.cells, memory.chunk(2, dim=1), strict=True):
            x = cell(x, kept)
            next_memory.append(x)
        return self.last(x), torch.cat(next_memory, dim=1)


class Wrong(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.last = nn.Linear(inputs.size, outputs)

    def forward(self, x):
        return self.last(x)


class Branching(Wrong):
    def forward(self, x):
        return self.last(x) if x.sum() > 0 else -self.last(x)


class Mixing(Wrong):
    def forward(self, x):
        return self.last(x - x.mean(0))


class Counting(Wrong):
    """Its graph has the number of samples with which it was traced."""

    def forward(self, x):
        return self.last(x) * float(len(x)) / x.shape[0]


class Inverting(Wrong):
    """torch's exporter does not know the operation."""

    def forward(self, x):
        return self.last(x) + torch.special.i0(x[:, :1])


class Remembering(Wrong):
    def forward(self, x):
        return self.last(x), x


class Undeclared(Wrong):
    """An attribute of this name may be anything else."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__(inputs, hidden, outputs)
        self.memory = nn.Linear(inputs.size, inputs.size)

    def forward(self, x):
        return self.last(self.memory(x))


class Forgetting(Wrong):
    memory = 3

    def forward(self, x, memory):
        return self.last(x)


class Shrinking(Wrong):
    memory = 3

    def forward(self, x, memory):
        return self.last(x), memory[:, :2]


class Owing(Wrong):
    memory = -1


class Ticking(Wrong):
    """It warms up over its first thousand calls, which learners and actors count each on their own."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__(inputs, hidden, outputs)
        self.last.calls = 0

    def forward(self, x):
        self.last.calls += 1
        return self.last(x) * (0.5 if self.last.calls < 1000 else 1.0)


class Collecting(Wrong):
    def __init__(self, inputs, hidden, outputs):
        super().__init__(inputs, hidden, outputs)
        self.seen = {"means": [torch.zeros(())]}

    def forward(self, x):
        self.seen["means"][0] = x.detach().mean()
        return self.last(x)


class Clocked(Wrong):
    """The count is in an object of the module's own."""

    class Clock:
        def __init__(self):
            self.now = 0

    def __init__(self, inputs, hidden, outputs):
        super().__init__(inputs, hidden, outputs)
        self.clock = self.Clock()

    def forward(self, x):
        self.clock.now += 1
        return self.last(x)


class Tallying(Wrong):
    """The count belongs to the class."""

    calls = 0

    def forward(self, x):
        Tallying.calls += 1
        return self.last(x)


class Drawing(Wrong):
    """It draws numbers, but of two calls alike most have the same outputs."""

    def forward(self, x):
        return self.last(x) + (torch.rand(()) > 0.999999).float()


class Plain(Wrong):
    """Attributes that stay as they are, of which some are computed anew at each call, to the same values."""

    def __init__(self, inputs, hidden, outputs):
        super().__init__(inputs, hidden, outputs)
        self.scales, self.offset, self.lock = [torch.ones(2), np.float32(0.0)], float("nan"), threading.Lock()
        self.itself = self.scales
        self.scales.append(self.scales)

    def forward(self, x):
        self.scales[0] = torch.ones(2)
        self.offset = float("nan")
        return self.last(x) * self.scales[0]


class Still(Wrong):
    def forward(self, x):
        return self.last(x).detach()


class Double(Wrong):
    def forward(self, x):
        return self.last(x).double()


class Idle(Wrong):
    def __init__(self, inputs, hidden, outputs):
        super().__init__(inputs, hidden, outputs)
        self.idle = nn.Parameter(torch.ones(2, 3))


class Growing(Wrong):
    def __init__(self, inputs, hidden, outputs):
        super().__init__(inputs, hidden, outputs)
        self.more = nn.Parameter(torch.ones(1 + int(torch.rand(1) * 1000)))


def failing(inputs, hidden, outputs):
    raise KeyError(outputs)


THEIRS: dict[str, ModuleFactory] = {
    "perceptron": perceptron,
    "attentive": Attentive,
    "pictures": Pictures,
    "wide": lambda inputs, hidden, outputs: nn.Linear(inputs.size, outputs + 1),
    "batch-norm": lambda inputs, hidden, outputs: nn.Sequential(
        Wrong(inputs, 0, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)
    ),
    "dropout": lambda inputs, hidden, outputs: nn.Sequential(nn.Linear(inputs.size, outputs), nn.Dropout(0.5)),
    "empty": lambda inputs, hidden, outputs: nn.Flatten(),
    "function": lambda inputs, hidden, outputs: torch.tanh,
    "doubles": lambda inputs, hidden, outputs: nn.Linear(inputs.size, outputs).double(),
    "double": Double,
    "failing": failing,
    "wrong-size": lambda inputs, hidden, outputs: nn.Linear(inputs.size + 1, outputs),
    "branching": Branching,
    "mixing": Mixing,
    "counting": Counting,
    "inverting": Inverting,
    "gated": Gated,
    "films": Films,
    "remembering": Remembering,
    "undeclared": Undeclared,
    "forgetting": Forgetting,
    "shrinking": Shrinking,
    "owing": Owing,
    "still": Still,
    "ticking": Ticking,
    "collecting": Collecting,
    "clocked": Clocked,
    "tallying": Tallying,
    "drawing": Drawing,
    "plain": Plain,
    "idle": Idle,
    "growing": Growing,
    "recurrent": lambda inputs, hidden, outputs: nn.Sequential(nn.Unflatten(1, (inputs.size, 1)), Last(outputs)),
}


class Last(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.units = nn.GRU(1, outputs, batch_first=True)

    def forward(self, x):
        return self.units(x)[0][:, -1]


@dataclass(frozen=True)
class Brought:
    """A registry of these modules alone."""

    def find(self, name: str) -> ModuleFactory:
        if name not in THEIRS:
            raise SpecError(f"no module {name}")
        return THEIRS[name]

    def names(self) -> set[str]:
        return set(THEIRS)
