"""Agents that act in turns: their transitions go from a turn to their next turn, with the rewards between.

An agent that waits observes nothing, so nets have no value for it. The value of a step in which it waits is what passes
through it: V_t = r_t + γ_t V_{t+1}, up to the value of what it observes at its next turn. So its turn at t, before
k − 1 steps of waiting, has the target r_t + γ r_{t+1} + … + γᵏ V_{t+k}: each env step is discounted. λ-returns decay by
λ from turn to turn, not in steps between. An *open* turn is one whose segment was cut before the agent's next turn: its
target is unknown, so it is no sample; targets of earlier turns end with its value. Rewards before an agent's first turn
belong to no transition.

This is the time scale of options (Sutton, Precup & Singh 1999, eq. 9): a turn is an option that lasts until the next.
Shapes: N agents, T time, B columns (copies or episodes), K cut segments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.learning.envs.base import BoolArray


def open_turns(
    waits_NTB: BoolArray, boot_waits_NK: BoolArray, cut_TB: BoolArray, boot_index_K: NDArray[np.int64]
) -> BoolArray:
    """bool [N, T, B]: the agent's next turn lies beyond the cut of the segment; `boot_index` is t·B + b of each cut."""
    agents, steps, _ = waits_NTB.shape
    found_NTB = np.zeros_like(waits_NTB)
    found_NTB.reshape(agents, -1)[:, boot_index_K] = boot_waits_NK
    for t in range(steps - 2, -1, -1):
        found_NTB[:, t] |= waits_NTB[:, t + 1] & ~cut_TB[t] & found_NTB[:, t + 1]
    return found_NTB


@dataclass(frozen=True)
class Turns:
    """The agents that wait, by step, and the turns that are open; for targets over several steps of a segment."""

    onward: Tensor
    """bool [N, T, B]: the agent waits in the next step of the segment."""
    waits: Tensor
    """bool [N, T, B]: the agent waits in this step."""
    open: Tensor
    """bool [N, T, B]; see the module."""

    @classmethod
    def of(cls, waits_NTB: Tensor, open_NTB: Tensor, follows: Tensor) -> Turns:
        """Find the turns from the flags of all steps.

        `follows`, [T, B] or [N, T, B], is true for a step after which the segment goes on.
        """
        onward_NTB = torch.zeros_like(waits_NTB)
        onward_NTB[:, :-1] = waits_NTB[:, 1:]
        return cls(onward_NTB & follows, waits_NTB, open_NTB)

    def through(self, reward_NTB: Tensor, discount_NTB: Tensor, after_NTB: Tensor) -> Tensor:
        """The values of what follows each step, [N, T, B], passed through the steps in which agents wait."""
        found_NTB = after_NTB.clone()
        for t in range(found_NTB.shape[1] - 2, -1, -1):
            later_NB = reward_NTB[:, t + 1] + discount_NTB[:, t + 1] * found_NTB[:, t + 1]
            found_NTB[:, t] = torch.where(self.onward[:, t], later_NB, found_NTB[:, t])
        return found_NTB

    def errors(self, delta_NTB: Tensor) -> Tensor:
        """TD errors; 0 for steps without an error of their own: where agents wait, and in open turns."""
        return delta_NTB.masked_fill(self.waits | self.open, 0.0)

    def decays(self, decay_NTB: Tensor, unbroken_NTB: Tensor) -> Tensor:
        """How much of the next step's advantage counts: `unbroken`, without λ, where agents wait; 0 in open turns."""
        return torch.where(self.waits, unbroken_NTB, decay_NTB).masked_fill_(self.open, 0.0)
