"""A game that becomes harder as agents become better: `mpe/simple_spread` with one landmark, then two, then all.

Each copy counts for itself: after `STREAK` successful episodes in succession it shows another landmark, for good. So
the task changes in the middle of the training, when agents have learned the present one, however many copies there are.
Copies of an actor that was not there before begin with one landmark, which counts against whoever changes the number
of actors. So do those of an evaluation: greedy returns are of the first stages.

Reward of each agent: Σ over the landmarks shown of e^(−d / 0.3), with the distance d of the nearest agent, so that
returns grow with the number of landmarks. Those that are not shown are zeros in observations.

Found by the entry point beside it, if this folder is on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BatchedEnv, Frame
from marless.learning.envs.mpe.moving import SimpleSpread, SpreadOptions
from marless.learning.envs.mpe.options import ParticleOptions
from marless.learning.envs.registry import read_options

REACH = 0.3
SUCCESS = 0.6
"""Mean of e^(−d / 0.3) over landmarks and the second half of an episode from which on it is successful: 0.15 from each.
"""
STREAK = 3
"""Random play succeeds in one or two of a hundred episodes, and so hardly ever so often in succession."""


@dataclass(frozen=True, kw_only=True)
class GrowingOptions(ParticleOptions):
    """Options of the game."""

    agents: int = 3
    """Number of agents, and of landmarks in the end."""


class GrowingSpread(SimpleSpread):
    """N agents cover as many landmarks as a copy shows, 1 to N."""

    def __init__(self, options: GrowingOptions, batch: int) -> None:
        super().__init__(SpreadOptions(**vars(options)), batch)
        self._shown_B, self._streak_B = np.ones(batch, np.int64), np.zeros(batch, np.int64)
        self._covered_B = np.zeros(batch)
        """Sum over the second half of the present episode of the mean over landmarks shown."""
        self._half = options.max_cycles // 2

    def reset(self, seed: int) -> Frame:
        self._shown_B[:], self._streak_B[:], self._covered_B[:] = 1, 0, 0.0
        return super().reset(seed)

    def _start(self, copies: NDArray[np.intp]) -> None:
        # Called where an episode has ended, and by `reset`, which has set all sums to 0: that is no success.
        done = self._covered_B[copies] >= SUCCESS * (self._max_cycles - self._half)
        self._streak_B[copies] = np.where(done, self._streak_B[copies] + 1, 0)
        grow = copies[self._streak_B[copies] == STREAK]
        self._shown_B[grow] = np.minimum(self._shown_B[grow] + 1, self._marks)
        self._streak_B[grow], self._covered_B[copies] = 0, 0.0
        super()._start(copies)

    def _shown(self) -> NDArray[np.bool_]:
        """Whether each landmark is shown, [M, B]."""
        return np.arange(self._marks)[:, None] < self._shown_B

    def _write_rows(self) -> None:
        super()._write_rows()
        (rows_NOB,) = self._role_rows()
        rows_NOB[:, 4 : 4 + 2 * self._marks] *= np.repeat(self._shown(), 2, axis=0)

    def _score(self) -> None:
        near_MB = np.exp(-self._dist_NMB[:, : self._marks].min(axis=0) / REACH) * self._shown()
        team_B = near_MB.sum(axis=0)
        self._covered_B += np.where(self._steps_B >= self._half, team_B / self._shown_B, 0.0)
        self._rewards_NB[:] = team_B

    def _state(self) -> dict[str, NDArray[Any]]:  # Any: float64 or int64
        return super()._state() | {"shown": self._shown_B, "streak": self._streak_B, "covered": self._covered_B}


def make(options: Mapping[str, Any], batch: int) -> BatchedEnv:  # Any: YAML values
    """Options are those of `GrowingOptions`."""
    return GrowingSpread(read_options(GrowingOptions, options), batch)
