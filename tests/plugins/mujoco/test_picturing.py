"""Pictures of MuJoCo tasks: where shapes and tiles are, and that copies, ends and carries show the right moment."""

import mujoco
import numpy as np
import pytest

from marless.learning.envs import registry
from marless.learning.envs.base import random_actions
from marless_mujoco import picturing
from marless_mujoco.entries import TASKS
from marless_mujoco.picturing import HEIGHT, WIDTH, drawn

MODEL = """
<mujoco><worldbody>
  <geom type="plane" size="5 5 1"/>
  <body pos="0 0 1"><joint type="slide" axis="1 0 0"/>
    <geom type="sphere" size="0.01" pos="0 0 0" rgba="0 0 1 1"/>
    <geom type="capsule" fromto="0.5 0 0 1 0 0" size="0.1" rgba="1 0 0 1"/>
    <geom type="sphere" size="0.1" pos="1 -0.5 0.5" rgba="0 1 0 1"/>
  </body>
</worldbody></mujoco>
"""


def picture(x=0.0, *, above=True, height_m=2.4):
    model = mujoco.MjModel.from_xml_string(MODEL)
    data = mujoco.MjData(model)
    data.qpos[0] = x
    mujoco.mj_kinematics(model, data)
    return drawn(model, data, above=above, height_m=height_m)


def test_a_capsule_covers_the_pixels_between_its_ends():
    # 100 pixels a metre, and the first body in the middle: the capsule goes from 40 to 110 pixels right of it, with its
    # round ends, and 10 up and down.
    middle = (HEIGHT - 1) / 2, (WIDTH - 1) / 2
    red = picture()[..., 0].astype(int) - picture()[..., 2] > 100
    rows, columns = np.nonzero(red)
    assert columns.min() - middle[1] == pytest.approx(40, abs=1)
    assert columns.max() - middle[1] == pytest.approx(110, abs=1)
    assert rows.min() - middle[0] == pytest.approx(-10, abs=1)
    assert rows.max() - middle[0] == pytest.approx(10, abs=1)


def test_what_is_higher_covers_what_is_below():
    model = MODEL.replace("1 -0.5 0.5", "0.75 0 0.5")  # the green sphere, above the middle of the capsule
    parsed = mujoco.MjModel.from_xml_string(model)
    data = mujoco.MjData(parsed)
    mujoco.mj_kinematics(parsed, data)
    r, g, _ = drawn(parsed, data, above=True, height_m=2.4)[HEIGHT // 2, WIDTH // 2 + 75]
    assert g > 200 > r


def test_tiles_pass_by_and_shapes_stay_in_the_middle():
    here, there, further = picture(0.0), picture(picturing._TILE_M), picture(2 * picturing._TILE_M)
    assert not np.array_equal(here, there)
    assert np.array_equal(here, further)  # two tiles on, everything looks alike


def test_from_the_side_height_is_up():
    side = picture(above=False)
    green = np.nonzero(side[..., 1].astype(int) - side[..., 0] > 100)
    red = np.nonzero(side[..., 0].astype(int) - side[..., 2] > 100)
    assert green[0].mean() < red[0].mean()  # rows are counted from the top


@pytest.mark.parametrize("task", TASKS)
def test_every_task_can_be_seen(task):
    env = registry.make(f"mujoco/{task}", {}, 2)
    env.reset(0)
    floor = 2 if (env.model.geom_type == 0).any() else 1
    seen = env.picture()
    assert seen.shape == (HEIGHT, WIDTH, 3)
    assert seen.dtype == np.uint8
    assert len(np.unique(seen.reshape(-1, 3), axis=0)) > floor + 10  # shades of its shapes


def test_an_episode_that_ended_shows_its_last_moment():
    env = registry.make("mujoco/hopper", {"max_episode_steps": 5}, 3)
    frame, rng = env.reset(1), np.random.default_rng(0)
    for _ in range(5):
        frame = env.step(random_actions(env.spaces, frame, rng)).frame
    ended, begun = env.picture(ended=True), env.picture()
    assert not np.array_equal(ended, begun)
    fresh = registry.make("mujoco/hopper", {}, 3)  # the same episode, whose fifth step is not its last
    frame, rng = fresh.reset(1), np.random.default_rng(0)
    for _ in range(5):
        frame = fresh.step(random_actions(fresh.spaces, frame, rng)).frame
    assert np.array_equal(fresh.picture(), ended)


def test_looking_changes_nothing():
    looked, other = (registry.make("mujoco/ant", {}, 2) for _ in range(2))
    frames = [each.reset(4) for each in (looked, other)]
    rng = np.random.default_rng(1)
    for _ in range(20):
        actions = random_actions(looked.spaces, frames[0], rng)
        looked.picture()
        frames = [each.step(actions).frame for each in (looked, other)]
        assert np.array_equal(frames[0].obs[0], frames[1].obs[0])
