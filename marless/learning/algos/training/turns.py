"""Agents that act in turns: their transitions go from a turn to their next turn, with the rewards between.

An agent that waits observes nothing, so nets have no value for it. Two rules. Where each agent has values of its own,
the value of a step in which it waits is what passes through it: V_t = r_t + γ_t V_{t+1}, up to the value of what it
observes at its next turn. So its turn at t, before k − 1 steps of waiting, has the target
r_t + γ r_{t+1} + … + γᵏ V_{t+k}: each env step is discounted. λ-returns decay by λ from turn to turn, not in steps
between. An *open* turn is one whose segment was cut before the agent's next turn: its target is unknown, so it is no
sample; targets of earlier turns end with its value. Rewards before an agent's first turn belong to no transition. This
is the time scale of options (Sutton, Precup & Singh 1999, eq. 9): a turn is an option that lasts until the next.

Where the agents of a team are valued together (mixers, joint critics), the team acts in each env step, and the choice
of a member that waits stands: it counts with the observation and the action of its last turn, also in the next state,
until it has the turn again. (These are the conditional targets of Xiao et al. 2020, §4.2, for choices that last several
steps.) A member that has not had a turn yet counts nothing.

Shapes: N agents of a class, T time, B columns (copies or episodes), K cut segments. In a replay, samples have frames: M
samples, n frames of a sample, F = 2 · M, E episodes.
"""

from __future__ import annotations

from collections.abc import Callable
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


Rows = NDArray[np.int64]
Flags = Callable[[Rows], BoolArray]
"""A field of frames, [x] → [x] or [x, N]."""


@dataclass(frozen=True)
class NextTurns:
    """Samples that go on while agents wait."""

    then: Rows
    """int64 [n, M], the frames whose rewards agents may sum."""
    taken: BoolArray
    """bool [n, N, M]: which of them an agent does."""
    after: Rows
    """int64 [M, N], the frames of the next turns."""
    open: BoolArray
    """bool [M, N]: there is none in the segment."""


def next_turns(then_nM: Rows, taken_nM: BoolArray, after_M: Rows, *, waits: Flags, last: Flags) -> NextTurns:
    """Extend samples, which end at `after`, by the steps in which agents wait there."""
    waits_MN = waits(after_M)
    going_MN = waits_MN & ~last(after_M)[:, None]
    then, taken = list(then_nM), [np.broadcast_to(each, waits_MN.T.shape) for each in taken_nM]
    after_MN = np.repeat(after_M[:, None], waits_MN.shape[1], axis=1)
    at_M = after_M
    while going_MN.any():
        then.append(at_M)
        taken.append(going_MN.T)
        after_MN = after_MN + going_MN
        # All agents of a sample walk along the same frames; one whose turn has come stays there, and the others go on.
        at_M = at_M + going_MN.any(axis=1)
        waits_MN = np.where(going_MN, waits(at_M), waits_MN)
        going_MN = going_MN & waits_MN & ~last(at_M)[:, None]
    return NextTurns(np.stack(then), np.stack(taken), after_MN, waits_MN)


def last_turns(frame_F: Rows, *, waits: Flags, first: Flags) -> Rows:
    """int64 [F, N]: the frame of each agent's last turn, its own where it acts; the segment's first if it had none."""
    waits_FN, at_F = waits(frame_F), frame_F
    found_FN = np.repeat(frame_F[:, None], waits_FN.shape[1], axis=1)
    back_FN = waits_FN & ~first(at_F)[:, None]
    while back_FN.any():
        found_FN = found_FN - back_FN
        at_F = at_F - back_FN.any(axis=1)
        back_FN = back_FN & waits(at_F) & ~first(at_F)[:, None]
    return found_FN


def open_steps(waits_TEN: BoolArray, follows_TE: BoolArray) -> BoolArray:
    """bool [T, E, N]: the agent's next turn lies beyond the end of the episode's part, whose last frame follows it.

    `waits` has T + 1 time steps; `follows` is true where an action was taken in the next one.
    """
    found_TEN = np.zeros_like(waits_TEN[1:])
    beyond_EN = np.ones_like(waits_TEN[0])
    for t in range(len(found_TEN) - 1, -1, -1):
        found_TEN[t] = waits_TEN[t + 1] & (beyond_EN | ~follows_TE[t, :, None])
        beyond_EN = found_TEN[t]
    return found_TEN


def turn_times(waits_TEN: BoolArray) -> Rows:
    """int64 [T + 1, E, N]: the time step of each agent's last turn, its own where it acts; 0 if it had none."""
    times_T11 = np.arange(len(waits_TEN))[:, None, None]
    return np.maximum.accumulate(np.where(waits_TEN, 0, times_T11), axis=0)


def held_turns(there_NTB: BoolArray, waits_NTB: BoolArray, cut_TB: BoolArray) -> tuple[Rows, BoolArray]:
    """Each agent's last turn in the segment, for a round whose segments follow one another in time, each [N, T, B].

    The first has its time step, the step's own where the agent acts; the second is true where an agent is there and has
    had a turn since the segment began or it came back. Elsewhere the time step is the step's own.
    """
    time_T1 = np.arange(len(cut_TB))[:, None]
    begins_TB = np.ones_like(cut_TB)
    begins_TB[1:] = cut_TB[:-1]
    begun_TB = np.maximum.accumulate(np.where(begins_TB, time_T1, 0), axis=0)
    acted_NTB = np.maximum.accumulate(np.where(there_NTB & ~waits_NTB, time_T1, -1), axis=1)
    absent_NTB = np.maximum.accumulate(np.where(there_NTB, -1, time_T1), axis=1)
    had_NTB = there_NTB & (acted_NTB >= begun_TB) & (acted_NTB > absent_NTB)
    return np.where(had_NTB, acted_NTB, time_T1), had_NTB
