"""The environments that benchmarks bring along."""

import importlib
import time

import numpy as np
import pytest

from bench.harness import OWN_ENVIRONMENTS
from marless.core.errors import SpecError
from marless.learning.envs import registry
from marless.learning.envs.contract import check_env


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(str(OWN_ENVIRONMENTS))


@pytest.fixture
def growing():
    return importlib.import_module("growing_spread")


def played(env, steps, play):
    frame = env.reset(3)
    for _ in range(steps):
        frame = env.step((play(frame.obs[0]),)).frame
    return env.save()["shown"].tolist()


def to_the_marks(obs_NBO):
    """Moves by which each agent walks to a landmark of its own, and brakes where that is not shown; int32 [N, B]."""
    agents = np.arange(len(obs_NBO))
    towards_NB2 = np.stack([obs_NBO[i, :, 4 + 2 * i : 6 + 2 * i] for i in agents])
    towards_NB2 = towards_NB2 - 0.4 * obs_NBO[:, :, :2]  # how far it rolls before it stands
    along = np.abs(towards_NB2).argmax(axis=-1)
    sign = np.take_along_axis(towards_NB2, along[..., None], axis=-1)[..., 0]
    moves = np.where(along == 0, np.where(sign < 0, 1, 2), np.where(sign < 0, 3, 4))
    return np.where(np.abs(towards_NB2).max(axis=-1) < 0.1, 0, moves).astype(np.int32)


def test_a_game_grows_with_what_agents_can_do_and_keeps_the_contract(growing):
    check_env(lambda batch: growing.make({}, batch))
    assert 3 in played(growing.make({}, 8), 25 * 30, to_the_marks)
    random = np.random.default_rng(1)
    chance = played(growing.make({}, 8), 25 * 30, lambda obs: random.integers(5, size=obs.shape[:2], dtype=np.int32))
    assert chance == [1] * 8


def test_landmarks_that_are_not_shown_are_not_seen_and_pay_nothing(growing):
    env = growing.make({}, 1)
    obs_O = env.reset(0).obs[0][0, 0]
    assert obs_O[4:6].all() and not obs_O[6:10].any() and obs_O[10:14].all()
    near = min(np.hypot(*env.reset(0).obs[0][agent, 0, 4:6]) for agent in range(3))
    stay = np.zeros((3, 1), np.int32)
    assert env.step((stay,)).rewards[0][:, 0] == pytest.approx([np.exp(-near / 0.3)] * 3)


def test_an_unknown_option_is_refused(growing):
    with pytest.raises(SpecError, match="unknown option 'landmarks'"):
        growing.make({"landmarks": 2}, 1)


def test_slow_steps_are_those_of_the_game_and_take_their_time():
    slow, quick = registry.make("slow_spread", {"agents": 2}, 3), registry.make("mpe/simple_spread", {"agents": 2}, 3)
    assert (slow.reset(1).obs[0] == quick.reset(1).obs[0]).all()
    stay, began_s = (np.zeros((2, 3), np.int32),), time.perf_counter()
    assert (slow.step(stay).rewards[0] == quick.step(stay).rewards[0]).all()
    assert time.perf_counter() - began_s >= 0.01
