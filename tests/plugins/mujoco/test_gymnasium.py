"""Our tasks against Gymnasium's v5, of which they are batches: the same physics, step for step, in float64."""

import gymnasium
import numpy as np
import pytest

from marless.learning.envs import registry

IDS = {
    "ant": "Ant-v5",
    "half_cheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "humanoid": "Humanoid-v5",
    "humanoid_standup": "HumanoidStandup-v5",
    "inverted_double_pendulum": "InvertedDoublePendulum-v5",
    "inverted_pendulum": "InvertedPendulum-v5",
    "pusher": "Pusher-v5",
    "reacher": "Reacher-v5",
    "swimmer": "Swimmer-v5",
    "walker2d": "Walker2d-v5",
}
EXACT = 1e-12
"""Greatest relative difference, as sums are added up in another order."""


def same(ours, theirs):
    return np.testing.assert_allclose(ours, theirs, rtol=EXACT, atol=EXACT)


def policy(env, rng, step):
    """Sometimes gentle, so that episodes are long, and sometimes not."""
    low, high = env.action_space.low, env.action_space.high
    scale = (0.05, 0.4, 1.0)[step // 40 % 3]
    return (rng.uniform(low, high) * scale).astype(np.float32)


@pytest.mark.parametrize("task", IDS)
@pytest.mark.parametrize("seed", [0, 7])
def test_equals_gymnasium_over_episodes(task, seed):
    """Resets without a seed go on with the generator, in both."""
    ours = registry.make(f"mujoco/{task}", {}, 1)
    theirs = gymnasium.make(IDS[task]).unwrapped
    longest = gymnasium.spec(IDS[task]).max_episode_steps
    assert ours.spaces.max_steps == longest
    [seen] = ours.spaces.classes
    assert seen.obs_size == theirs.observation_space.shape[0]
    np.testing.assert_array_equal(seen.action.low, theirs.action_space.low)
    np.testing.assert_array_equal(seen.action.high, theirs.action_space.high)
    rng, episodes, steps = np.random.default_rng(seed), 0, 0
    frame, (obs, _) = ours.reset(seed), theirs.reset(seed=seed)
    same(ours._obs_BO[0], obs)
    np.testing.assert_array_equal(frame.obs[0][0, 0], obs.astype(np.float32))
    for step in range(400):
        action = policy(theirs, rng, step)
        moved = ours.step((action[None, None],))
        obs, reward, terminated, _, info = theirs.step(action.astype(np.float64))
        steps += 1
        same(moved.rewards[0][0, 0], reward)
        for name, part in ours.parts.items():
            if name in info:
                same(part[0], info[name])
        assert moved.terminated[0][0, 0] == terminated
        assert moved.truncated[0] == (steps == longest and not terminated)
        np.testing.assert_array_equal(moved.final.obs[0][0, 0], obs.astype(np.float32))
        if moved.ended[0]:
            episodes, steps = episodes + 1, 0
            obs, _ = theirs.reset()
        same(ours._obs_BO[0], obs)
    assert episodes or task in {"half_cheetah", "swimmer", "humanoid_standup"}  # these never fall, for 1,000 steps
