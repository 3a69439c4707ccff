"""Batches of off-policy algorithms: what was drawn from the replay buffer, as tensors for all agents.

A draw has T time steps of E columns, time-major: column t · E + e. Single env steps are episodes of T = 1. Features
have one more time step, which serves only as a successor: samples are the first T · E columns, and their successors
start E columns later. Shapes: N agents of a class, I inputs + 1 (a last row of ones, see
`marless.learning.nets.layout`), A actions or action components, S state, M = T · E, F = (T + 1) · E.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Gains:
    """The rewards before the target net's value in a TD target, and the discount of that value."""

    reward: Tensor
    """float32 [N, M], normalised (`RewardMoments`); for single env steps, summed over the n steps of a target."""
    discount: Tensor
    """float32 [N, M], discount of the successor's value; 0 after a terminal state."""

    def parts(self, width: int) -> Iterator[Gains]:
        """Views of `width` columns each."""
        return map(Gains, torch.split(self.reward, width, -1), torch.split(self.discount, width, -1))


@dataclass(frozen=True, kw_only=True)
class ClassBatch:
    """Observations and actions of the agents of one class."""

    features: Tensor
    """float32 [N, I, F], inputs of their nets."""
    action: Tensor
    """int64 [N, 1, M], or float32 [N, A, M]."""
    legal: Tensor | None
    """bool [N, A, F]; None if every action always is."""
    alive: Tensor | None
    """float32 [N, F], 1 or 0, samples that count: the agent acts, or its last choice stands while it waits; None if
    agents never leave, or have values after their death. See `marless.learning.algos.training.turns`."""
    acts: Tensor | None = None
    """float32 [N, M], 1 where the agent itself acts; None: wherever it is alive."""
    kept: Tensor | None = None
    """float32 [N, A, M], continuous actions that stand in the successors, NaN for agents that act there; None if all
    do."""
    waits: Tensor | None = None
    """float32 [N, F], 1 where agents that have values of their own wait; only of episodes in which some do."""
    turn: Tensor | None = None
    """int64 [N, 1, F], the time step of the last turn of agents that are valued together; only of episodes in which
    some wait. Features are those of each step, actions and legal actions those of the turns."""
    returned: Tensor | None = None
    """bool [N, 1, F], the agent comes back: the memory of its net is empty; None if agents never leave, or nets have
    no memory."""
    memory: Tensor | None = None
    """float32 [N, H, E], memory of their nets before the first step, as when they acted; None if it is empty."""

    def parts(self, width: int) -> Iterator[ClassBatch]:
        """Split several batches of single env steps that were gathered at once into views of `width` steps each."""
        columns = (
            torch.split(self.features, 2 * width, -1),
            torch.split(self.action, width, -1),
            _split(self.legal, 2 * width),
            _split(self.alive, 2 * width),
            _split(self.acts, width),
            _split(self.kept, width),
        )
        # missing fields repeat None endlessly
        for features, action, legal, alive, acts, kept in zip(*columns, strict=False):
            yield ClassBatch(features=features, action=action, legal=legal, alive=alive, acts=acts, kept=kept)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One draw; valid until the next one."""

    classes: tuple[ClassBatch, ...]
    """One per class of the scope."""
    gains: tuple[Gains, ...]
    """One per class; or only one for the team, N = 1, until the last agent has gone."""
    steps: int
    """T, time steps."""
    width: int
    """E, columns of a time step."""
    importance: Tensor | None
    """float32 [M], importance weights of prioritised draws; None for uniform draws."""
    valid: Tensor | None
    """float32 [M], 1, or 0 for padding of short episodes and for steps of burn-in; None if there are none."""
    follows: Tensor
    """bool [T, E]: the next time step belongs to the same episode, and an action was taken in it."""
    state: Tensor | None
    """float32 [1, S + 1, F], the global state, last row ones; None if it is not kept."""
    row: NDArray[np.int64]
    """[E], the rows drawn, for `ReplayBuffer.reprioritise`."""

    def parts(self, width: int) -> Iterator[Batch]:
        """Split several batches of single env steps that were gathered at once into views of `width` steps each."""
        columns = zip(
            zip(*(each.parts(width) for each in self.classes), strict=True),
            zip(*(each.parts(width) for each in self.gains), strict=True),
            _split(self.state, 2 * width),
            _split(self.importance, width),
            self.row.reshape(-1, width),
            strict=False,  # missing fields repeat None endlessly
        )
        follows = self.follows[:, :width]  # equal for all
        for classes, gains, state, importance, row in columns:
            yield Batch(
                classes=classes,
                gains=gains,
                steps=1,
                width=width,
                importance=importance,
                valid=None,
                follows=follows,
                state=state,
                row=row,
            )


def _split(tensor: Tensor | None, width: int) -> Iterable[Tensor | None]:
    """Views of `width` columns each; None endlessly for a missing tensor."""
    return repeat(None) if tensor is None else torch.split(tensor, width, -1)
