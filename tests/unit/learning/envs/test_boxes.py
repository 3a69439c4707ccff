"""Continuous actions of any bounds, against numbers worked out by hand; and a policy that must find one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from marless.learning.envs.base import ActionArray, AgentClass, Box, EnvSpaces, Frame, Transition, chance_acts
from tests.unit.learning.algos.solving import Trained, episode_return

LOW = (-1.0, 100.0, -math.inf, -math.inf, 0.0)
HIGH = (3.0, math.inf, -50.0, math.inf, 3.4e38)
SPACE = Box(LOW, HIGH)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (0.0, [1.0, 100 + math.log(2), -50 - math.log(2), 0.0, math.log(2)]),
        (1.0, [3.0, 100 + math.log(1 + math.e), -50 - math.log(1 + 1 / math.e), 1.0, math.log(1 + math.e)]),
        (-1.0, [-1.0, 100 + math.log(1 + 1 / math.e), -50 - math.log(1 + math.e), -1.0, math.log(1 + 1 / math.e)]),
        (-200.0, [-1.0, 100.0, -250.0, -200.0, 0.0]),
        (1e4, [3.0, 10_100.0, -50.0, 1e4, 1e4]),
    ],
)
def test_numbers_become_components(unit, expected):
    found = SPACE.components(np.full((2, 5), unit, np.float32))
    assert found.dtype == np.float32
    assert found[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_greater_numbers_are_greater_actions_within_bounds():
    unit = np.linspace(-12, 12, 400, dtype=np.float32)
    found = SPACE.components(np.repeat(unit[:, None], 5, axis=1))
    assert (np.diff(found, axis=0) >= 0).all()
    assert (found >= np.array(LOW, np.float32)).all()
    assert (found <= np.array(HIGH, np.float32)).all()
    assert (np.diff(found[:, 4]) > 0).all()


def test_chance_acts_as_a_standard_normal_policy_does():
    agents, obs = AgentClass("a", ("a",), 1, SPACE), np.zeros((1, 20_000, 1), np.float32)
    drawn = chance_acts(agents, obs, None, np.random.default_rng(0))[0]
    normal = np.random.default_rng(1).standard_normal((20_000, 1)).astype(np.float32)
    expected = SPACE.components(np.repeat(normal, 5, axis=1))[:, 1:]
    np.testing.assert_allclose(drawn[:, 1:].mean(axis=0), expected.mean(axis=0), atol=0.03)
    np.testing.assert_allclose(drawn[:, 1:].std(axis=0), expected.std(axis=0), atol=0.03)
    assert (drawn[:, 0].min(), drawn[:, 0].max()) == pytest.approx((-1.0, 3.0), abs=0.01)  # uniform


class Target:
    """One step: the reward is minus the squared distance of the action from `best`."""

    def __init__(self, space: Box, best: float, batch: int = 32) -> None:
        self.spaces, self.batch, self._best = EnvSpaces((AgentClass("a", ("a",), 1, space),), 0, 1), batch, best

    def reset(self, seed: int) -> Frame:
        return Frame((np.ones((1, self.batch, 1), np.float32),))

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        frame, ends = self.reset(0), np.ones(self.batch, np.bool_)
        rewards = -np.square(actions[0][:, :, 0].astype(np.float64) - self._best)
        return Transition(frame, frame, (rewards,), (ends[None],), ~ends, ends)

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("low", "high", "best"), [(100.0, math.inf, 103.0), (-math.inf, -50.0, -52.0), (0.0, 3.4e38, 0.1)]
)
def test_a_policy_finds_the_best_action_of_a_box_with_one_bound(low, high, best):
    """Clipped to the bound, as all samples were, actions are worth -9, -4, and -0.01."""
    team = Trained(Target(Box((low,), (high,)), best), {"name": "ippo"}, seed=0)
    team.train(60, 16)
    assert episode_return(team.greedy()) == pytest.approx(0.0, abs=0.008)
