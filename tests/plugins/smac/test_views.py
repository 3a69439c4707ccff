"""SMAC's class and PettingZoo's view over the same battles as the batched environment."""

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.learning.envs.base import random_actions
from marless_smac import EmbeddedSmac, SmacOptions
from marless_smac.classic import StarCraft2Env
from marless_smac.maps import find
from marless_smac.picturing import CELL


def whole_battle(seed=3, name="3m"):
    """A battle of the batched environment: first frame, actions, and copies of what each step shows."""
    env, rng = EmbeddedSmac(find(name), SmacOptions(), 1), np.random.default_rng(0)
    frame = env.reset(seed)
    first, steps = [frame.obs[0][:, 0].copy(), frame.state[0].copy()], []
    while True:
        action = random_actions(env.spaces, frame, rng)
        moved = env.step(action)
        shown = moved.final
        seen = (shown.obs[0][:, 0].copy(), shown.state[0].copy(), shown.masks[0][:, 0].astype(int).tolist())
        steps.append((action[0][:, 0].tolist(), float(moved.team_reward[0]), bool(moved.ended[0]), seen))
        if moved.ended[0]:
            return first, steps, [moved.frame.obs[0][:, 0].copy(), moved.frame.state[0].copy()]
        frame = moved.frame


def test_smacs_class_shows_the_same_battle():
    first, steps, after = whole_battle()
    env = StarCraft2Env(map_name="3m", seed=3)
    obs, state = env.reset()
    assert np.array_equal(obs, first[0]) and np.array_equal(state, first[1])
    for action, reward, ended, (obs, state, masks) in steps:
        got = env.step(action)
        assert got[:2] == (pytest.approx(reward), ended)
        assert np.array_equal(env.get_obs(), obs) and np.array_equal(env.get_state(), state)
        assert env.get_avail_actions() == masks
    assert got[2] == {"battle_won": False, "dead_allies": 3, "dead_enemies": got[2]["dead_enemies"]}
    with pytest.raises(SpecError, match="call reset"):
        env.step([1, 1, 1])
    obs, state = env.reset()
    assert np.array_equal(obs, after[0]) and np.array_equal(state, after[1])
    assert env.get_stats()["battles_game"] == 1 and env.get_stats()["battles_draw"] == 0


def test_smacs_sizes_and_names():
    info = StarCraft2Env(map_name="3s5z").get_env_info()
    assert info == {
        "state_shape": 216,
        "obs_shape": 128,
        "n_actions": 14,
        "n_agents": 8,
        "episode_limit": 150,
        "agent_features": ["health", "energy/cooldown", "rel_x", "rel_y", "shield", "type_0", "type_1"],
        "enemy_features": ["health", "rel_x", "rel_y", "shield", "type_0", "type_1"],
    }
    mixed = StarCraft2Env(map_name="2m_vs_1z").get_env_info()
    assert mixed["agent_features"][4:] == [] and mixed["enemy_features"][3:] == ["shield"]


@pytest.mark.parametrize("continuing", [False, True])
def test_smacs_class_ends_a_battle_at_its_limit(continuing):
    env = StarCraft2Env(map_name="3m", continuing_episode=continuing)
    env.reset()
    env._env._engine._state.marching[3:] = False
    steps = [env.step([1, 1, 1]) for _ in range(60)]
    assert [over for _, over, _ in steps] == [*[False] * 59, True] and env.get_stats()["timeouts"] == 1
    assert [info.get("episode_limit", False) for _, _, info in steps] == [*[False] * 59, continuing]
    env.reset()
    for _ in range(3):
        env.step([1, 1, 1])
    assert env.get_state()[30 + 9 :].any()
    env.reset()  # in the middle of a battle
    assert not env.get_state()[21:].any()


def test_bad_input_of_smacs_class():
    with pytest.raises(SpecError, match="unknown map '8n'; did you mean '8m'"):
        StarCraft2Env(map_name="8n")
    with pytest.raises(SpecError, match="unknown option 'reward_sparce'; did you mean 'reward_sparse'"):
        StarCraft2Env(map_name="8m", reward_sparce=True)
    env = StarCraft2Env(map_name="3m")
    with pytest.raises(SpecError, match="call reset"):
        env.get_obs()
    env.reset()
    with pytest.raises(SpecError, match="has 3 agents, got 2 actions"):
        env.step([1, 1])
    with pytest.raises(SpecError, match=r"action 6 \(target 0\) is not available to agent_0"):
        env.step([6, 1, 1])


def test_pettingzoo_accepts_the_parallel_view():
    from pettingzoo.test import parallel_api_test

    from marless_smac.parallel import parallel_env

    env = parallel_env(map_name="3m")
    parallel_api_test(env, num_cycles=30)
    observed, _ = env.reset(seed=3)
    first, steps, _ = whole_battle()
    assert np.array_equal([each["observation"] for each in observed.values()], first[0])
    for action, reward, ended, (obs, state, masks) in steps:
        observed, rewards, terminated, truncated, _ = env.step(dict(zip(env.possible_agents, action, strict=True)))
        assert np.array_equal([each["observation"] for each in observed.values()], obs)
        assert [each["action_mask"].tolist() for each in observed.values()] == masks
        assert list(rewards.values()) == [pytest.approx(reward)] * 3
        assert np.array_equal(env.state(), state)
        assert (all(terminated.values()) or all(truncated.values())) == ended == (not env.agents)


def test_a_picture_shows_units_where_they_are():
    env = EmbeddedSmac(find("3m"), SmacOptions(), 2)
    env.reset(0)
    state = env._engine._state
    state.x[:, 0], state.y[:, 0] = [4, 8, 12, 20, 24, 28], [10, 12, 14, 16, 18, 20]
    state.health[0, 0] = 0
    picture = env.picture()
    assert picture.shape == (18 * CELL, 32 * CELL, 3) and picture.dtype == np.uint8

    def colour(x, y):
        return tuple(picture[round((25 - y) * CELL), round(x * CELL)].tolist())

    ally, enemy, floor = colour(8, 12), colour(24, 18), colour(16, 11)
    assert ally[2] > 150 > ally[0] and enemy[0] > 150 > enemy[2]
    assert colour(12, 14) == ally and colour(20, 16) == enemy == colour(28, 20)
    assert colour(4, 10) == floor != colour(16, 24.5)  # a dead unit is not drawn; a wall is


def test_the_last_picture_of_a_battle_shows_its_end():
    env = EmbeddedSmac(find("3m"), SmacOptions(), 1)
    env.reset(0)
    env._engine._state.health[3:] = 0.5
    env._engine._state.x[3:, 0], env._engine._state.y[3:, 0] = 12, [15, 16, 17]
    action = np.array([[6], [7], [8]], np.int32)
    env._write()
    before = env.picture()
    while not (moved := env.step((np.where(env._frame.masks[0][:, :, 6:].any(-1), action, 1),))).ended[0]:
        before = env.picture()
    assert moved.won[0]
    ended, begun = env.picture(ended=True), env.picture()
    assert not np.array_equal(ended, begun) and not np.array_equal(ended, before)
    assert (ended[..., 0] > 190).sum() > 0 and not ((ended[..., 0] == 200) & (ended[..., 2] == 75)).any()
