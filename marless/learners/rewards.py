"""The scale of rewards in off-policy learning.

Shapes: T time, N agents of a class, B copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marless.data.trajectory import Trajectory
from marless.envs.base import BoolArray

_CONSTANT = 1e-10
"""A variance below this share of the mean square is taken for a rounding error."""


class ReturnMoments:
    """Running (Σw, Σwx, Σwx²) of the discounted returns of each class of a scope, and of the team's sum.

    The return at a step is the discounted sum of the rewards so far: γ times the return one step earlier, plus the
    reward; it starts at 0 with each segment. All samples ever inserted count, except those of dead agents, so that
    the moments change less and less, and TD targets become stable. Rewards are divided by the standard deviation of the
    returns (Engstrom et al. 2020, §2) and never shifted: a constant that is added to all rewards changes which policy
    is best if the policy decides when episodes end.
    """

    def __init__(self, classes: Sequence[int], gamma: float) -> None:
        self._classes = tuple(classes)
        self._gamma = gamma
        self.sums = np.zeros((len(self._classes) + 1, 3))
        """float64 [classes + 1, 3]; the last row is the team's."""

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Add the rewards of a round."""
        for trajectory in trajectories:
            cut_TB = trajectory["cut"].astype(np.bool_)
            team_TB = np.zeros(cut_TB.shape)
            anyone_TB = np.zeros(cut_TB.shape, bool)
            for row, k in enumerate(self._classes):
                reward_TNB = trajectory[f"reward/{k}"].astype(np.float64)
                alive_TNB = trajectory.arrays.get(f"alive/{k}")
                return_TNB = running_returns(reward_TNB, cut_TB, self._gamma)
                self._count(row, return_TNB if alive_TNB is None else return_TNB[alive_TNB])
                team_TB += reward_TNB.sum(axis=1)
                anyone_TB |= True if alive_TNB is None else alive_TNB.any(axis=1)
            self._count(-1, running_returns(team_TB, cut_TB, self._gamma)[anyone_TB])

    def scale(self, row: int) -> np.float32:
        """1 / standard deviation of the returns of a class, or of the team (-1); 1 if they do not vary."""
        total, first, second = self.sums[row]
        variance = second / total - (first / total) ** 2 if total else 0.0
        if not total or variance <= _CONSTANT * second / total:
            return np.float32(1)
        return np.float32(1 / np.sqrt(variance))

    def _count(self, row: int, x: NDArray[np.float64]) -> None:
        self.sums[row] += (x.size, x.sum(), np.square(x).sum())


def running_returns(reward: NDArray[np.float64], cut_TB: BoolArray, gamma: float) -> NDArray[np.float64]:
    """The discounted sum of the rewards since the segment began, at each step; [T, B] or [T, N, B] like `reward`."""
    found = reward.copy()
    for t in range(1, len(reward)):
        found[t] += gamma * np.where(cut_TB[t - 1], 0.0, found[t - 1])
    return found
