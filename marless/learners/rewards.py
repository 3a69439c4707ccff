"""The rewards that policies are trained on: whose they are, and their scale in off-policy learning.

Shapes: T time, N agents of a class, B copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from marless.algos.team import RewardRule, TeamReward
from marless.data.trajectory import Trajectory
from marless.envs.base import BoolArray, EnvSpaces
from marless.errors import CorruptError

FloatArray = NDArray[np.float64]
_CONSTANT = 1e-10
"""A variance below this share of the mean square is taken for a rounding error."""


def team_rewards(trajectory: Trajectory, spaces: EnvSpaces, how: TeamReward) -> FloatArray:
    """The team's reward at each step, float64 [T, B]; see `TeamReward`. 0 where no agent is alive."""
    if how == "auto" and spaces.team_reward:
        return trajectory["team_reward"].astype(np.float64)
    classes = range(len(spaces.classes))
    total_TB: FloatArray = np.add.reduce([trajectory[f"reward/{k}"].sum(axis=1, dtype=np.float64) for k in classes])
    if how != "mean":
        return total_TB
    living_TB = np.add.reduce([_alive(trajectory, k).sum(axis=1) for k in classes])
    found_TB: FloatArray = total_TB / np.maximum(living_TB, 1)
    return found_TB


def rewarded(trajectory: Trajectory, spaces: EnvSpaces, rule: RewardRule) -> Trajectory:
    """The trajectory with the rewards of a rule. Agents with the team's reward have it while they live.

    With `joint` they all have it. With `after_death` they have it until the episode ends, and their returns go on:
    `terminated` is true only where the last agent of the team has gone, and then for all. `alive` stays as it is: dead
    agents do not act.
    """
    if rule.team is None:
        return trajectory
    team_TB = team_rewards(trajectory, spaces, rule.team)
    arrays = dict(trajectory.arrays)
    gone_TB = everyone_gone(trajectory, spaces) if rule.after_death else None
    for k in range(len(spaces.classes)):
        earns_TNB = _alive(trajectory, k) | rule.after_death | rule.joint
        arrays[f"reward/{k}"] = np.where(earns_TNB, team_TB[:, None], 0.0).astype(np.float32)
        if gone_TB is not None:
            arrays[f"terminated/{k}"] = np.broadcast_to(gone_TB[:, None], earns_TNB.shape).copy()
    return Trajectory(arrays)


def everlasting(trajectory: Trajectory, rule: RewardRule) -> Trajectory:
    """With `after_death`: the trajectory with all agents alive, as the dead have returns, too."""
    if not rule.after_death:
        return trajectory
    arrays = dict(trajectory.arrays)
    return Trajectory(
        arrays | {name: np.ones_like(array) for name, array in arrays.items() if name.startswith("alive/")}
    )


def everyone_gone(trajectory: Trajectory, spaces: EnvSpaces) -> BoolArray:
    """bool [T, B]: no agent is left after the step."""
    gone = [
        (trajectory[f"terminated/{k}"].astype(np.bool_) | ~_alive(trajectory, k)).all(axis=1)
        for k in range(len(spaces.classes))
    ]
    found_TB: BoolArray = np.logical_and.reduce(gone)
    return found_TB


def _alive(trajectory: Trajectory, k: int) -> BoolArray:
    alive_TNB = trajectory.arrays.get(f"alive/{k}")
    shape = trajectory[f"reward/{k}"].shape
    return np.ones(shape, np.bool_) if alive_TNB is None else alive_TNB.astype(np.bool_, copy=False)


class ReturnMoments:
    """Running (Σw, Σwx, Σwx²) of the discounted returns of each class of a scope, or of the team.

    The return at a step is the discounted sum of the rewards so far: γ times the return one step earlier, plus the
    reward; it starts at 0 with each episode, and goes on from round to round where episodes do. All samples ever
    inserted count, except those of dead agents, so that the moments change less and less, and TD targets become stable.
    Rewards are divided by the standard deviation of the returns (Engstrom et al. 2020, §2) and never shifted: a
    constant that is added to all rewards changes which policy is best if the policy decides when episodes end.
    """

    def __init__(self, classes: Sequence[int], gamma: float, *, team: bool = False) -> None:
        """With `team`, all agents of a trajectory have the team's reward, see `rewarded`."""
        self._classes = tuple(classes)
        self._gamma = gamma
        self._team = team
        self.sums = np.zeros((1 if team else len(self._classes), 3))
        """float64 [classes, 3], or [1, 3] of the team."""
        self.running = np.zeros((0, 0, 0))
        """float64 [lanes, N, B]: with carried episodes, the returns at the end of the last round that ran each lane, of
        the agents of all classes or, N = 1, of the team."""

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Add the rewards of a round, which are those of lanes 0, 1, …; raises CorruptError if `running` has another N
        or B.
        """
        after = [self._add(trajectory, self._before(lane, trajectory)) for lane, trajectory in enumerate(trajectories)]
        if after and "resumed" in trajectories[0].arrays:
            resting = self.running[len(after) :]
            self.running = np.concatenate([np.stack(after), *([resting] if len(resting) else [])])

    def _add(self, trajectory: Trajectory, before_NB: FloatArray) -> FloatArray:
        """Add the rewards of a lane whose returns were `before`; returns those after its last step."""
        cut_TB, n = trajectory["cut"].astype(np.bool_), 0
        after: list[FloatArray] = []
        for row, k in enumerate(self._classes[:1] if self._team else self._classes):
            reward_TNB, alive_TNB = trajectory[f"reward/{k}"].astype(np.float64), _alive(trajectory, k)
            if self._team:
                reward_TNB, alive_TNB = reward_TNB[:, :1], self._anyone(trajectory)
            agents = reward_TNB.shape[1]
            found_TNB = running_returns(reward_TNB, cut_TB, self._gamma, before_NB[n : n + agents])
            n += agents
            after.append(found_TNB[-1])
            found = found_TNB[alive_TNB]
            self.sums[row] += (found.size, found.sum(), np.square(found).sum())
        return np.concatenate(after)

    def _before(self, lane: int, trajectory: Trajectory) -> FloatArray:
        """[N, B], the returns before the first step; 0 in copies whose episode begins with it."""
        agents = 1 if self._team else sum(trajectory[f"reward/{k}"].shape[1] for k in self._classes)
        resumed_B = trajectory.arrays.get("resumed")
        if resumed_B is None or lane >= len(self.running):
            return np.zeros((agents, trajectory.batch))
        if self.running.shape[1:] != (agents, trajectory.batch):
            raise CorruptError(
                f"the returns of running episodes are {list(self.running.shape[1:])} (agents, copies), and a round has "
                f"{[agents, trajectory.batch]}"
            )
        found_NB: FloatArray = np.where(resumed_B, self.running[lane], 0.0)
        return found_NB

    def _anyone(self, trajectory: Trajectory) -> BoolArray:
        """bool [T, 1, B]: an agent is alive."""
        found: BoolArray = np.logical_or.reduce(
            [_alive(trajectory, k).any(axis=1, keepdims=True) for k in self._classes]
        )
        return found

    def scale(self, row: int) -> np.float32:
        """1 / standard deviation of the returns of a class (by position), or of the team (0); 1 if they do not vary."""
        total, first, second = self.sums[row]
        variance = second / total - (first / total) ** 2 if total else 0.0
        if not total or variance <= _CONSTANT * second / total:
            return np.float32(1)
        return np.float32(1 / np.sqrt(variance))


def running_returns(
    reward: FloatArray, cut_TB: BoolArray, gamma: float, before: FloatArray | float = 0.0
) -> FloatArray:
    """The discounted sum of the rewards since the segment began, at each step; [T, B] or [T, N, B] like `reward`.

    The first segments go on from the sums `before`.
    """
    found = reward.copy()
    found[0] += gamma * before
    for t in range(1, len(reward)):
        found[t] += gamma * np.where(cut_TB[t - 1], 0.0, found[t - 1])
    return found
