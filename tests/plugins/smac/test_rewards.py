"""Rewards and ends against numbers worked out by hand, and the environment over battles that a test scripts."""

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless_smac.env import SmacEnv
from marless_smac.maps import find
from marless_smac.options import SmacOptions
from marless_smac.rewards import Scorer
from tests.plugins.smac.placing import Scripted, row, scene


def marines(ally_health=(45, 45, 45), enemy_health=(45, 45, 45)):
    return scene("3m", row(3, 10), row(3, 14), allies={"health": ally_health}, enemies={"health": enemy_health})


def scored(name, before, after, **options):
    scorer = Scorer(find(name), SmacOptions(**options), 1)
    scorer.remember(before)
    outcome = scorer.score(after)
    return outcome.reward[0], bool(outcome.over[0]), bool(outcome.won[0]), bool(outcome.lost[0])


def test_damage_kills_and_wins_are_paid():
    scale = 20 / 365
    assert scored("3m", marines(), marines(enemy_health=(39, 33, 45))) == (
        pytest.approx(18 * scale),
        False,
        False,
        False,
    )
    hurt = marines(enemy_health=(6, 0, 0))
    assert scored("3m", hurt, marines(enemy_health=(0, 0, 0))) == (pytest.approx(216 * scale), True, True, False)
    assert scored("3m", marines((6, 0, 0)), marines((0, 0, 0))) == (0, True, False, True)
    assert scored("3m", marines((6, 0, 0), (6, 0, 0)), marines((0, 0, 0), (0, 0, 0))) == (
        pytest.approx(16 * scale),
        True,
        False,
        False,
    )


def test_damage_to_allies_costs_where_asked_for():
    options = {"reward_only_positive": False, "reward_scale": False, "reward_defeat": -7.0}
    before, after = marines((45, 12, 0)), marines((33, 0, 0), (39, 45, 45))
    assert scored("3m", before, after, **options)[0] == pytest.approx(6 - 0.5 * (12 + 12 + 10))
    assert scored("3m", marines((6, 0, 0)), marines((0, 0, 0)), **options)[0] == pytest.approx(-0.5 * 16 - 7)


def test_sparse_rewards():
    scale = 20 / 365
    won, lost = marines(enemy_health=(0, 0, 0)), marines((0, 0, 0))
    assert scored("3m", marines(), marines(enemy_health=(6, 6, 6)), reward_sparse=True)[0] == 0
    assert scored("3m", marines(), won, reward_sparse=True)[0] == pytest.approx(scale)
    assert scored("3m", marines(), lost, reward_sparse=True, reward_scale=False)[0] == -1


def test_shields_that_enemies_regain_pay_too():
    before = scene("2s3z", row(5, 9), row(5, 14), enemies={"shield": [70, 80, 50, 50, 50]})
    after = scene("2s3z", row(5, 9), row(5, 14), enemies={"shield": [74, 80, 50, 50, 50]})
    assert scored("2s3z", before, after)[0] == pytest.approx(4 * 20 / 1020)
    assert scored("2s3z", before, after, reward_only_positive=False)[0] == pytest.approx(-4 * 20 / 1020)


def test_a_medivac_alone_has_lost():
    health = np.array([125, 125, *[45] * 7, 150.0])
    enemy = np.array([*[45] * 7, 125, 125, 150.0])
    only = np.arange(10) == 9

    def battle(ours, theirs):
        return scene("MMM", row(10, 9), row(10, 14), allies={"health": ours}, enemies={"health": theirs})

    fresh = battle(health, enemy)
    assert scored("MMM", fresh, battle(health * only, enemy))[1:] == (True, False, True)
    assert scored("MMM", fresh, battle(health, enemy * only))[1:] == (True, True, False)
    assert scored("MMM", fresh, battle(health * only, enemy * 0))[1:] == (True, False, True)
    assert scored("MMM", fresh, battle(health * 0, enemy * 0))[1:] == (True, False, True)


def env_over(*scenes, name="3m", **options):
    return SmacEnv(find(name), SmacOptions(**options), Scripted(name, *scenes))


def stop(*dead):
    return (np.array([[0 if i in dead else 1] for i in range(3)], np.int32),)


def test_an_episode_of_the_environment():
    env = env_over(marines(), marines((45, 0, 45), (9, 0, 0)), marines((45, 0, 45), (0, 0, 0)))
    frame = env.reset(0)
    assert frame.state[0, 21:].tolist() == [0] * 27
    moved = env.step(stop())
    assert moved.rewards[0].tolist() == [moved.team_reward.tolist()] * 3
    assert moved.team_reward[0] == pytest.approx((126 + 20) * 20 / 365)
    assert not moved.ended[0] and moved.frame.masks[0][1, 0].tolist() == [True, *[False] * 8]
    assert np.flatnonzero(moved.frame.state[0, 21:]).tolist() == [1, 10, 19]
    moved = env.step(stop(1))
    assert (moved.ended[0], moved.won[0], moved.truncated[0]) == (True, True, False)
    assert moved.terminated[0].all() and moved.final.obs[0][0, 0, 4] == 0 and moved.frame.obs[0][0, 0, 4] == 1
    assert not moved.frame.state[0, 21:].any() and np.flatnonzero(moved.final.state[0, 21:]).tolist() == [1, 9, 19]
    assert env.counts.stats()["win_rate"] == 1.0


@pytest.mark.parametrize("continuing", [False, True])
def test_a_battle_ends_at_its_limit_and_is_a_draw(continuing):
    env = env_over(marines(), continuing_episode=continuing)
    env.reset(0)
    steps = [env.step(stop()) for _ in range(60)]
    assert [bool(moved.ended[0]) for moved in steps] == [*[False] * 59, True]
    assert steps[-1].truncated[0] == continuing and (steps[-1].terminated[0] != continuing).all()
    assert not any(moved.truncated[0] or moved.terminated[0].any() for moved in steps[:-1])
    assert env.counts.stats() == {
        "battles_won": 0,
        "battles_game": 1,
        "battles_draw": 1,
        "win_rate": 0.0,
        "timeouts": 1,
        "restarts": 0,
    }


def test_a_battle_that_the_game_lost_is_truncated_and_pays_nothing():
    env = env_over(marines(), marines(enemy_health=(9, 9, 9)), None)
    env.reset(0)
    env.step(stop())
    moved = env.step(stop())
    assert moved.truncated[0] and moved.ended[0] and not moved.won[0] and not moved.terminated[0].any()
    assert not moved.team_reward.any() and moved.frame.state[0, 12] == 1
    assert env.counts.restarts == 1 and env.counts.ended == 0


def test_an_action_that_is_not_available():
    env = env_over(marines((45, 0, 45)))
    env.reset(0)
    with pytest.raises(
        SpecError, match=r"action 1 \(stop\) is not available to agent_1 in copy 0; available: 0 \(no-op\)$"
    ):
        env.step(stop())
    with pytest.raises(SpecError, match="map 3m: action 9 is not available to agent_0"):
        env.step((np.array([[9], [0], [1]], np.int32),))
    with pytest.raises(SpecError, match=r"6 \(target 0\)"):
        env.step((np.array([[0], [0], [1]], np.int32),))
    with pytest.raises(SpecError, match="map 3m: action 9 is not available to agent_1 in copy 0"):
        env.step((np.array([[1], [9], [1]], np.int32),))
