"""What Gymnasium cannot tell: contracts, batches, threads, faults of the physics, models at random, options."""

from functools import partial

import gymnasium
import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions
from marless.learning.envs.contract import check_env
from marless_mujoco.entries import TASKS
from tests.plugins.mujoco.test_gymnasium import same


def make(task, batch=1, **options):
    return registry.make(f"mujoco/{task}", options, batch)


def played(env, steps, seed=3):
    """All observations and rewards of some random steps, as one array each."""
    rng, frame = np.random.default_rng(seed), env.reset(seed)
    seen, earned = [frame.obs[0].copy()], []
    for _ in range(steps):
        moved = env.step(random_actions(env.spaces, frame, rng))
        frame = moved.frame
        seen.append(frame.obs[0].copy())
        earned.append(moved.rewards[0].copy())
    return np.array(seen), np.array(earned)


@pytest.mark.parametrize("task", TASKS)
def test_keeps_the_contract(task):
    check_env(partial(make_for_contract, task), steps=60)


def make_for_contract(task, batch):
    return make(task, batch, max_episode_steps=25)


@pytest.mark.parametrize("task", ["ant", "hopper", "humanoid"])
def test_threads_change_nothing(task):
    alone, together = (played(make(task, 5, threads=threads), 40) for threads in (1, 4))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("task", ["ant", "humanoid"])
def test_contact_forces_are_each_copy_s_own(task):
    """Copies that begin alike and get the same controls feel the same forces; another one feels others."""
    env = make(task, 3)
    env.reset(0)
    for copy in (0, 1):
        env.physics.state[copy] = env.physics.state[2]
    env.physics.forward()
    rng, low, high = np.random.default_rng(1), *env.spaces.classes[0].action.bounds
    felt = 0.0
    for _ in range(30):
        control_A = rng.uniform(low, high)
        env.step((np.stack([control_A, 0.5 * control_A, control_A])[None].astype(np.float32),))
        np.testing.assert_array_equal(env.contacts_BK[0], env.contacts_BK[2])
        felt = max(felt, np.abs(env.contacts_BK[0] - env.contacts_BK[1]).max())
    assert felt > 1


def test_a_copy_whose_physics_diverges_ends_and_the_others_go_on():
    whole, other = (make("hopper", 3, terminate_when_unhealthy=False, threads=threads) for threads in (1, 3))
    actions = (np.zeros((1, 3, 3), np.float32),)
    for env in (whole, other):
        env.reset(5)
    other.qvel_BV[1] = 1e12  # beyond what MuJoCo takes for a velocity
    before = other._obs_BO[1].copy()
    sound, broken = whole.step(actions), other.step(actions)
    assert broken.broken.tolist() == broken.truncated.tolist() == broken.ended.tolist() == [False, True, False]
    assert not sound.broken.any() and not broken.terminated[0].any()
    np.testing.assert_array_equal(broken.final.obs[0][0, 1], before.astype(np.float32))
    assert broken.rewards[0][0, 1] == 0
    for copy in (0, 2):
        np.testing.assert_array_equal(sound.final.obs[0][0, copy], broken.final.obs[0][0, copy])
    for _ in range(20):
        assert np.isfinite(other.step(actions).frame.obs[0]).all()


def test_no_file_is_left_of_what_mujoco_warns_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make("hopper")
    env.reset(0)
    env.qpos_BP[0] = np.nan
    assert env.step((np.zeros((1, 1, 3), np.float32),)).broken.all()
    assert list(tmp_path.iterdir()) == []


OTHERS = {
    "hopper": {"forward_reward_weight": 2.0, "ctrl_cost_weight": 0.1, "healthy_reward": 0.5, "healthy_z_range": [1, 9]},
    "walker2d": {"exclude_current_positions_from_observation": False, "healthy_angle_range": [-0.1, 0.1]},
    "half_cheetah": {"exclude_current_positions_from_observation": False, "reset_noise_scale": 0.3, "frame_skip": 2},
    "swimmer": {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 0.5},
    "ant": {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.1, "contact_force_range": [-9, 9]},
    "humanoid": {"include_cinert_in_observation": False, "include_cfrc_ext_in_observation": False},
    "humanoid_standup": {"include_cvel_in_observation": False, "include_qfrc_actuator_in_observation": False},
    "reacher": {"reward_dist_weight": 3.0, "reward_control_weight": 0.0},
    "pusher": {"reward_near_weight": 0.0, "reward_control_weight": 2.0},
    "inverted_pendulum": {"reset_noise_scale": 0.1},
    "inverted_double_pendulum": {"healthy_reward": 3.0},
}


@pytest.mark.parametrize("task", TASKS)
def test_options_mean_what_gymnasium_means(task):
    ids = {"half_cheetah": "HalfCheetah", "humanoid_standup": "HumanoidStandup", "walker2d": "Walker2d"}
    name = ids.get(task, task.title().replace("_", ""))
    ours, theirs = make(task, **OTHERS[task]), gymnasium.make(f"{name}-v5", **OTHERS[task]).unwrapped
    rng = np.random.default_rng(2)
    ours.reset(1)
    theirs.reset(seed=1)
    for _ in range(30):
        action = rng.uniform(theirs.action_space.low, theirs.action_space.high).astype(np.float32)
        moved, (obs, reward, terminated, *_) = ours.step((action[None, None],)), theirs.step(action.astype(np.float64))
        same(moved.rewards[0][0, 0], reward)
        np.testing.assert_array_equal(moved.final.obs[0][0, 0], obs.astype(np.float32))
        assert moved.terminated[0][0, 0] == terminated
        if terminated:
            theirs.reset()


@pytest.mark.parametrize("field", ["actuator_gear", "body_mass", "dof_damping", "geom_friction"])
def test_models_at_random_move_in_other_ways_and_are_carried(field):
    usual, varied = make("half_cheetah", 2), make("half_cheetah", 2, randomise={field: 0.5})
    values = getattr(varied.model, field)
    varied.reset(3)
    drawn = varied._varied[field]
    assert (np.abs(drawn - values) <= 0.5 * np.abs(values)).all() and not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(played(varied, 20)[0][-1], played(usual, 20)[0][-1])
    again = make("half_cheetah", 2, randomise={field: 0.5})
    again.load(varied.save())
    actions = (np.full((1, 2, 6), 0.5, np.float32),)
    for _ in range(10):
        one, other = varied.step(actions), again.step(actions)
        np.testing.assert_array_equal(one.frame.obs[0], other.frame.obs[0])
    before = drawn.copy()
    varied._begin(np.array([1]), varied._rng)
    assert np.array_equal(before[0], drawn[0]) and not np.array_equal(before[1], drawn[1])


def test_masses_take_their_inertia_along():
    env = make("hopper", 2, randomise={"body_mass": 0.3})
    env.reset(0)
    factor = env._varied["body_mass"][:, 1:] / env.model.body_mass[1:]
    np.testing.assert_allclose(env._varied["body_inertia"][:, 1:], env.model.body_inertia[1:] * factor[..., None])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"frame_skp": 1}, "frame_skip"),
        ({"frame_skip": 0}, "frame_skip must be a whole number from 1 to 10,000, got 0"),
        ({"threads": 257}, "threads must be a whole number from 1 to 256, got 257"),
        ({"threads": 1.5}, "threads must be a whole number"),
        ({"healthy_z_range": [2, 1]}, "healthy_z_range must be two numbers, the lower one first"),
        ({"healthy_z_range": "tall"}, "healthy_z_range must be two numbers"),
        ({"terminate_when_unhealthy": "no"}, "terminate_when_unhealthy must be true or false"),
        ({"healthy_reward": "much"}, "healthy_reward must be a number"),
        ({"healthy_reward": float("nan")}, "healthy_reward must be a number"),
        ({"randomise": {"body_mas": 0.1}}, "body_mass"),
        ({"randomise": {"body_mass": 1}}, "randomise: body_mass must be a number above 0 and below 1"),
        ({"randomise": 3}, "randomise must be a mapping"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options, said):
    with pytest.raises(SpecError, match=r"^environment mujoco/hopper: ") as caught:
        make("hopper", **options)
    assert said in str(caught.value)


def test_damaged_saves_are_refused():
    env = make("hopper", 2)
    env.reset(0)
    for name, value in [("steps", np.array([0, 1000])), ("state", np.zeros((2, 3))), ("obs", np.full((2, 11), np.nan))]:
        with pytest.raises(Exception, match=f"saved environment: {name}"):
            env.load(env.save() | {name: value})
