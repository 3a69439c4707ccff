"""PettingZoo's view of a channel shows what the batched environment shows."""

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from marless.core.errors import SpecError
from marless_wall_model.entries import llwm
from marless_wall_model.parallel import parallel_env
from tests.plugins.wall_model.conftest import SMALL


def test_pettingzoo_accepts_it():
    parallel_api_test(parallel_env(**SMALL), num_cycles=10)
    parallel_api_test(parallel_env(state="vwm", **SMALL), num_cycles=5)


def test_it_shows_the_same_episodes():
    native, view = llwm(SMALL, 1), parallel_env(**SMALL)
    frame = native.reset(7)
    seen, infos = view.reset(seed=7)
    assert list(seen) == list(infos) == view.agents == list(native.spaces.agents)
    rng = np.random.default_rng(0)
    for step in range(4):
        action = rng.uniform(0.9, 1.1, (16, 1, 1)).astype(np.float32)
        moved = native.step((action,))
        seen, rewards, ended, cut, infos = view.step(dict(zip(seen, action[:, 0], strict=True)))
        assert np.array_equal(np.stack(list(seen.values())), moved.final.obs[0][:, 0])
        assert list(rewards.values()) == moved.rewards[0][:, 0].tolist()
        assert np.array_equal(view.state(), moved.final.state[0])
        assert set(cut.values()) == {step == 3} and set(ended.values()) == {False}
        assert infos["bottom_0_0"] == {"blown_up": False}
    assert view.agents == []
    with pytest.raises(SpecError, match="call reset"):
        view.step({})
    frame = moved.frame  # the next episode has begun in both
    seen, _ = view.reset()
    assert np.array_equal(np.stack(list(seen.values())), frame.obs[0][:, 0])


def test_a_reset_in_the_middle_begins_another_episode():
    view = parallel_env(**SMALL)
    first, _ = view.reset(seed=1)
    second, _ = view.reset()
    assert not np.array_equal(first["bottom_0_0"], second["bottom_0_0"])
    for _ in range(4):
        _, _, _, cut, _ = view.step({agent: np.ones(1, np.float32) for agent in view.agents})
    assert set(cut.values()) == {True}


def test_bad_input():
    with pytest.raises(SpecError, match="unknown state 'lwm'; did you mean 'llwm'"):
        parallel_env(state="lwm")
    with pytest.raises(SpecError, match="call reset"):
        parallel_env(**SMALL).state()


def test_a_picture_shows_slow_fluid_blue_at_the_wall_and_fast_fluid_red():
    view = parallel_env(render_mode="rgb_array", **SMALL)
    assert view.render() is None
    view.reset(seed=1)
    view._env.flows[0].channel.u[...] = np.arange(10)[:, None, None]  # faster from row to row
    pixels = view.render()
    # π · 160 pixels wide; 160 of the side, a gap of 4, and π/2 · 160 from above.
    assert pixels.shape == (160 + 4 + 251, 503, 3) and pixels.dtype == np.uint8
    assert pixels[0, 0].tolist() == [178, 24, 43] and pixels[159, 0].tolist() == [33, 102, 172]
    assert parallel_env(**SMALL).render() is None


def test_the_last_picture_of_an_episode_is_kept():
    env = llwm(SMALL, 1)
    env.reset(1)
    for _ in range(4):
        before = env.picture()
        env.step((np.ones((16, 1, 1), np.float32),))
    assert not np.array_equal(env.picture(ended=True), env.picture())
    assert not np.array_equal(env.picture(ended=True), before)
