"""The scale of rewards, by hand; and that a task whose reward is always 1 is learned with it."""

from __future__ import annotations

import numpy as np
import pytest

from marless.data.trajectory import Trajectory
from marless.envs.base import AgentClass, Discrete, EnvSpaces, Frame, Transition
from marless.learners.rewards import ReturnMoments, running_returns
from tests.unit.learners.solving import Trained, episode_return


def round_of(reward, cut, **more: np.ndarray) -> Trajectory:
    return Trajectory({"reward/0": np.array(reward, np.float32), "cut": np.array(cut), **more})


def test_returns_so_far_begin_anew_with_each_segment():
    """γ = 0.5: 1, 2 + 0.5, | 4, 8 + 2."""
    cut = np.array([[False], [True], [False], [True]])
    found = running_returns(np.array([[1.0], [2.0], [4.0], [8.0]]), cut, 0.5)
    assert found.tolist() == [[1.0], [2.5], [4.0], [10.0]]


def test_rewards_are_scaled_by_the_returns_of_the_living():
    """γ = 0.5. Copy 0: rewards 1, 3 → returns 1, 3.5; copy 1: −1, then dead. Mean 3.5/3, mean square 14.25/3."""
    alive = np.array([[[True, True]], [[True, False]]])
    moments = ReturnMoments((0,), 0.5)
    assert moments.scale(0) == 1
    moments.add([round_of([[[1, -1]], [[3, 5]]], [[False, False], [True, True]], **{"alive/0": alive})])
    assert 1 / moments.scale(0) == pytest.approx(np.sqrt(14.25 / 3 - (3.5 / 3) ** 2))


def test_a_team_is_scaled_by_the_returns_of_its_sum():
    """γ = 0.5, two agents: sums 3, 0 → returns 3, 1.5."""
    moments = ReturnMoments((0,), 0.5)
    moments.add([round_of([[[1], [2]], [[4], [-4]]], [[False], [True]])])
    assert 1 / moments.scale(-1) == pytest.approx(0.75)


@pytest.mark.parametrize("reward", [0.0, 0.1, 7.0])
def test_returns_that_are_all_equal_leave_rewards_as_they_are(reward):
    moments = ReturnMoments((0,), 0.99)
    moments.add([round_of([[[reward, reward, reward]]], [[True, True, True]])])
    assert moments.scale(0) == moments.scale(-1) == 1


class Balancing:
    """CartPole in one dimension: 1 a step until |x| > 2, at most 40 steps; x moves by the action and by chance."""

    spaces = EnvSpaces((AgentClass("agent", ("agent_0",), 5, Discrete(3)),), 0, 40)

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._x, self._steps = np.zeros(self.batch, int), np.zeros(self.batch, int)
        return self._frame()

    def step(self, actions) -> Transition:
        self._x = self._x + actions[0][0] - 1 + self._rng.integers(-1, 2, self.batch)
        self._steps += 1
        fallen = abs(self._x) > 2
        truncated = (self._steps == 40) & ~fallen
        ended, final = fallen | truncated, self._frame()
        self._x, self._steps = np.where(ended, 0, self._x), np.where(ended, 0, self._steps)
        rewards = np.ones((1, self.batch), np.float32)
        return Transition(self._frame(), final, (rewards,), (fallen[None],), truncated, ended)

    def close(self) -> None: ...

    def _frame(self) -> Frame:
        x = np.clip(self._x, -2, 2)
        return Frame((np.eye(5, dtype=np.float32)[x + 2][None],))


def test_a_task_whose_reward_is_always_one_is_learned():
    """Left alone it lasts some 13 steps. The mean of all rewards is 1, so nothing would be left without it."""
    settings = {"lr": 0.01, "batch": 64, "warmup": 64, "updates": 20, "target_tau": 0.1, "epsilon": 0.5}
    team = Trained(Balancing(16), {"name": "iql", "gamma": 0.95} | settings, seed=0)
    team.train(rounds=8, steps=40)
    assert episode_return(team.greedy(episodes=16)) == 40
