"""The frames of agents that act in turns: where their next turn is, and where their last one was.

Two rules. Where each agent has values of its own (`iql`, `iddpg`), its sample goes from its turn to its next turn, see
`marless.learning.algos.training.turns`. Where the agents of a team are valued together (mixers, joint critics), the
team acts in each env step, and the choice of a member that waits stands: it counts with the observation and the action
of its last turn, also in the next state, until it has the turn again. (These are the conditional targets of Xiao et al.
2020, §4.2, for choices that last several steps.) A member that has not had a turn yet counts nothing.

Shapes: N agents of a class, M samples, n frames of a sample, F = 2 · M.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray

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
