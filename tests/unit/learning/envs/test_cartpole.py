"""Carts and poles against Gymnasium's, and the rules of a team of them."""

import gymnasium
import numpy as np
import pytest

from marless.core.errors import CorruptError, SpecError
from marless.learning.envs import registry
from marless.learning.envs.games import LONGEST


def made(batch, **options):
    return registry.make("game/cartpole", options, batch)


def balancing(obs_NBO):
    """Push towards where the poles fall: keeps them up for good."""
    return ((obs_NBO[..., 2] + 0.5 * obs_NBO[..., 3] + 0.05 * obs_NBO[..., 1]) > 0).astype(np.int32)


def test_a_cart_moves_as_gymnasiums():
    env, theirs = made(1), gymnasium.make("CartPole-v1").unwrapped
    obs = env.reset(0).obs[0][0, 0]
    rng, ends = np.random.default_rng(0), 0
    theirs.reset(seed=0)
    theirs.state = env.save()["carts"][0, 0]
    for _ in range(300):
        action = int(rng.integers(2))
        moved = env.step((np.array([[action]], np.int32),))
        obs, reward, terminated, _, _ = theirs.step(action)
        assert np.abs(moved.final.obs[0][0, 0] - obs).max() < 1e-6
        assert (moved.rewards[0][0, 0], moved.terminated[0][0, 0]) == (reward, terminated)
        if terminated:
            ends += 1
            theirs.reset(seed=0)
            theirs.state = env.save()["carts"][0, 0]
    assert ends > 8


def test_one_fall_ends_the_episode_of_the_whole_team():
    env = made(4, agents=3)
    frame = env.reset(1)
    for _ in range(60):
        action_NB = balancing(frame.obs[0])
        action_NB[2, 0] = 1  # the third agent of the first copy only pushes to the right
        moved = env.step((action_NB,))
        frame = moved.frame
        if moved.ended.any():
            break
    assert moved.ended.tolist() == [True, False, False, False]
    assert moved.terminated[0].T.tolist() == [[True] * 3, *[[False] * 3] * 3]
    assert moved.rewards[0].tolist() == [[1.0] * 4] * 3
    assert np.abs(moved.final.obs[0][:2, 0, 2]).max() < 0.1  # the other two had not fallen
    assert abs(moved.final.obs[0][2, 0, 2]) > np.deg2rad(12)
    assert np.abs(frame.obs[0][:, 0]).max() <= 0.05
    assert np.array_equal(frame.state, frame.obs[0].swapaxes(0, 1).reshape(4, 12))


def test_an_episode_is_cut_after_500_steps():
    env = made(2, agents=2)
    frame = env.reset(2)
    ended = []
    for _ in range(LONGEST):
        moved = env.step((balancing(frame.obs[0]),))
        frame = moved.frame
        ended.append(bool(moved.ended.any()))
    assert ended == [False] * (LONGEST - 1) + [True]
    assert moved.truncated.all()
    assert not moved.terminated[0].any()


@pytest.mark.parametrize("agents", [0, 1.5, True, "2", 10**6])
def test_a_number_of_carts_that_cannot_be_is_refused(agents):
    with pytest.raises(SpecError, match="agents must be a whole number from 1 to"):
        made(1, agents=agents)


def test_steps_that_cannot_be_are_no_save():
    env = made(2)
    env.reset(0)
    with pytest.raises(CorruptError, match="steps holds numbers outside 0 to 499"):
        env.load(env.save() | {"steps": np.array([0, LONGEST])})
