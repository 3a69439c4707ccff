"""The rewards that policies are trained on: whose they are, how large, and their scale in off-policy learning.

Shapes: T time, N agents of a class, B copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from marless.learning.algos.settings import RewardRule, TeamReward
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import BoolArray, EnvSpaces

FloatArray = NDArray[np.float64]
_CONSTANT = 1e-10
"""A sum of squares below this share of its terms is taken for a rounding error."""


def team_rewards(trajectory: Trajectory, spaces: EnvSpaces, how: TeamReward) -> FloatArray:
    """The team's reward at each step, float64 [T, B]; see `TeamReward`. 0 where no agent is alive."""
    if how == "auto" and spaces.team_reward:
        return trajectory["team_reward"].astype(np.float64)
    classes = range(len(spaces.classes))
    total_TB: FloatArray = np.add.reduce([trajectory[f"reward/{k}"].sum(axis=1, dtype=np.float64) for k in classes])
    if how != "mean":
        return total_TB
    living_TB = np.add.reduce([trajectory.there(k).sum(axis=1) for k in classes])
    found_TB: FloatArray = total_TB / np.maximum(living_TB, 1)
    return found_TB


def rewarded(trajectory: Trajectory, spaces: EnvSpaces, rule: RewardRule) -> Trajectory:
    """The trajectory with the rewards of a rule, clipped. Agents with the team's reward have it while they live.

    With `joint` they all have it. With `after_death` they have it until the episode ends, and their returns go on:
    `terminated` is true only where the last agent of the team has gone, and then for all. `alive` stays as it is: dead
    agents do not act.
    """
    classes, arrays = range(len(spaces.classes)), dict(trajectory.arrays)
    if rule.team is None:
        if rule.clip is not None:
            arrays |= {f"reward/{k}": np.clip(trajectory[f"reward/{k}"], -rule.clip, rule.clip) for k in classes}
        return Trajectory(arrays)
    team_TB = team_rewards(trajectory, spaces, rule.team)
    if rule.clip is not None:
        team_TB = team_TB.clip(-rule.clip, rule.clip)
    gone_TB = everyone_gone(trajectory, classes) if rule.after_death else None
    for k in classes:
        earns_TNB = trajectory.there(k) | rule.after_death | rule.joint
        arrays[f"reward/{k}"] = np.where(earns_TNB, team_TB[:, None], 0.0).astype(np.float32)
        if gone_TB is not None:
            arrays[f"terminated/{k}"] = np.broadcast_to(gone_TB[:, None], earns_TNB.shape).copy()
    return Trajectory(arrays)


def with_dead_agents_rewarded(trajectory: Trajectory, rule: RewardRule) -> Trajectory:
    """The trajectory with all agents alive if `after_death` is set, as the dead have returns, too."""
    if not rule.after_death:
        return trajectory
    arrays = dict(trajectory.arrays)
    return Trajectory(
        arrays | {name: np.ones_like(array) for name, array in arrays.items() if name.startswith("alive/")}
    )


def everyone_gone(trajectory: Trajectory, classes: Iterable[int]) -> BoolArray:
    """bool [T, B]: no agent of these classes is left after the step."""
    gone = [(trajectory[f"terminated/{k}"].astype(np.bool_) | ~trajectory.there(k)).all(axis=1) for k in classes]
    found_TB: BoolArray = np.logical_and.reduce(gone)
    return found_TB


class RewardMoments:
    """Running sums of the rewards of each class of a scope, or of the team, and how values are shifted and scaled.

    Nets learn Q = (V − `centre`) · `scale`, where V is the value in units of the reward. The same number is subtracted
    from the values of all states and actions, so it does not change which action is best. (To subtract a number from
    all rewards does, wherever the policy decides when episodes end.) In TD targets, r becomes
    (r + (discount − 1) · centre) · scale, which has mean 0 and standard deviation 1.

    All samples ever inserted count, except those of agents that have left, so that TD targets become stable.
    """

    def __init__(self, classes: Sequence[int], gamma: float, *, team: bool = False) -> None:
        """Start without rewards; with `team`, all agents have the reward of the team, see `rewarded`."""
        self._classes = tuple(classes)
        self._gamma = gamma
        self._team = team
        self.sums = np.zeros((1 if team else len(self._classes), 5))
        """float64 [classes, 5], or [1, 5] of the team: samples, Σ r, Σ r², terminations, Σ r at terminations."""

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Add the rewards of a round."""
        for trajectory in trajectories:
            for row, k in enumerate(self._classes[:1] if self._team else self._classes):
                # In float64: float32 sums over a long job would stop growing, and the variance is a
                # small difference of such sums.
                reward_TNB = trajectory[f"reward/{k}"].astype(np.float64)
                there_TNB, over_TNB = trajectory.there(k), trajectory[f"terminated/{k}"].astype(np.bool_)
                if self._team:
                    there = [trajectory.there(k).any(axis=1, keepdims=True) for k in self._classes]
                    reward_TNB, there_TNB = reward_TNB[:, :1], np.logical_or.reduce(there)
                    over_TNB = everyone_gone(trajectory, self._classes)[:, None]
                reward, last = reward_TNB[there_TNB], reward_TNB[there_TNB & over_TNB]
                self.sums[row] += (reward.size, reward.sum(), np.square(reward).sum(), last.size, last.sum())

    def centre(self, row: int) -> float:
        """The value of a class (by position), or of the team (0), that equals its own TD targets on average.

        It is Σ r / Σ (1 − discount). 0 without samples, and where nothing is discounted.
        """
        total, first, _, ended, _ = self.sums[row]
        lost = (1 - self._gamma) * (total - ended) + ended
        return float(first / lost) if lost > 0 else 0.0

    def scale(self, row: int) -> float:
        """1 / standard deviation of r + (discount − 1) · centre; 1 if that does not vary."""
        total, first, second, ended, last = self.sums[row]
        centre, lost = self.centre(row), 1 - self._gamma
        # Σ x² for x = r + (discount − 1) · centre, multiplied out in the running sums. The mean of x is 0 by the choice
        # of the centre, so this is n times its variance.
        squares = second + centre**2 * (lost**2 * (total - ended) + ended)
        left = squares - 2 * centre * (lost * (first - last) + last)
        return float(np.sqrt(total / left)) if left > _CONSTANT * squares else 1.0
