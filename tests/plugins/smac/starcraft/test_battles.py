"""The game as a backend gives what the embedded engine gives: the stand-in serves that engine over the protocol."""

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.learning.envs.base import random_actions
from marless_smac.engine import EmbeddedBattles
from marless_smac.env import SmacEnv
from marless_smac.maps import find
from marless_smac.options import SmacOptions
from marless_smac.starcraft import installation
from marless_smac.starcraft.battles import GameBattles
from marless_smac.starcraft.connection import GameError
from marless_smac.starcraft.process import Limits
from tests.plugins.smac.starcraft.conftest import processes

OPTIONS = SmacOptions(obs_last_action=True, obs_pathing_grid=True, state_timestep_number=True)


@pytest.fixture
def game():
    """Makes environments over the game, and closes them."""
    made = []

    def make(name, batch=1, **limits):
        battles = GameBattles(find(name), batch, installation.find(), Limits(**{"quit_s": 0.2} | limits))
        env = SmacEnv(find(name), OPTIONS, battles)
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def embedded(name, seed):
    """The environment that the stand-in serves to copy 0 under this seed."""
    env = SmacEnv(find(name), OPTIONS, EmbeddedBattles(find(name), 1))
    env.reset(int(np.random.SeedSequence(seed).spawn(1)[0].generate_state(1)[0]))
    return env


def same(found, expected):
    """True if two frames are equal; the sign of a zero may differ, which places of dead units decide."""
    each = ((*frame.obs, frame.state, *frame.masks) for frame in (found, expected))
    return all(np.array_equal(a, b) for a, b in zip(*each, strict=True))


@pytest.mark.parametrize(("name", "grid"), [("3s5z", 1), ("MMM", 8)])
def test_both_backends_give_the_same_observations_states_masks_and_rewards(sc2, game, name, grid):
    sc2(name, bits=grid, late=3)
    theirs, ours = game(name), embedded(name, seed=5)
    frame = theirs.reset(5)
    assert same(frame, ours._frame)
    rng = np.random.default_rng(0)
    rewards = battles = 0
    for _ in range(150):
        actions = random_actions(ours.spaces, frame, rng)
        found, expected = theirs.step(actions), ours.step(actions)
        assert same(found.frame, expected.frame)
        assert same(found.final, expected.final)
        for field in ("rewards", "terminated"):
            np.testing.assert_array_equal(getattr(found, field)[0], getattr(expected, field)[0])
        np.testing.assert_array_equal(found.ended, expected.ended)
        np.testing.assert_array_equal(found.won, expected.won)
        frame, rewards, battles = found.frame, rewards + found.team_reward[0], battles + found.ended[0]
    assert rewards > 0
    assert battles >= 2
    assert theirs.counts == ours.counts


def test_every_copy_has_a_process_and_a_seed_of_its_own(sc2, game):
    root = sc2("3m")
    env = game("3m", batch=2)
    frame = env.reset(0)
    assert processes(root) == 2
    assert not np.array_equal(frame.obs[0][:, 0], frame.obs[0][:, 1])
    again = env.reset(0)
    assert processes(root) == 2, "a reset begins new games in the same processes"
    np.testing.assert_array_equal(again.obs[0], game("3m", batch=2).reset(0).obs[0])


@pytest.mark.parametrize(
    "fault",
    [
        "exit",
        "drop",
        "error",
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("wrong_id", "no_status", "garbage", "ended")),
    ],
)
def test_a_battle_whose_game_fails_is_cut_and_counted_and_the_next_one_is_whole(sc2, game, fault):
    root = sc2("3m", **{fault: 3})
    env = game("3m")
    frame, rng = env.reset(0), np.random.default_rng(0)
    for step in range(1, 6):
        before = env.counts.restarts
        transition = env.step(random_actions(env.spaces, frame, rng))
        frame = transition.frame
        assert env.counts.restarts - before == (step == 3)
        if step == 3:
            assert (transition.truncated[0], transition.terminated[0].any()) == (True, False)
            assert transition.team_reward[0] == 0
            health = env._battles.units
            assert (health.allies.health > 0).all() and (health.enemies.health > 0).all()
    assert processes(root) == 2
    assert env.counts.ended == 0, "a battle that the game ended is no battle"


def test_a_game_that_does_not_answer_in_time_has_failed(sc2, game):
    sc2("3m", hang=1)
    env = game("3m", answer_s=0.5)
    frame = env.reset(0)
    env.step(random_actions(env.spaces, frame, np.random.default_rng(0)))
    assert env.counts.restarts == 1


def test_a_game_that_fails_time_and_again_ends_the_environment(sc2, game):
    sc2("3m", error=1, processes=10)
    env = game("3m")
    frame, rng = env.reset(0), np.random.default_rng(0)
    for _ in range(2):
        frame = env.step(random_actions(env.spaces, frame, rng)).frame
    with pytest.raises(GameError, match=r"copy 0: 3 processes have failed in a row; .* Game has already ended"):
        env.step(random_actions(env.spaces, frame, rng))


def test_a_game_that_does_not_start_says_what_it_printed(sc2, game):
    sc2("3m", at_start="libSDL is missing")
    with pytest.raises(GameError, match="exit code 1 while it started; it printed: …libSDL is missing"):
        game("3m").reset(0)


def test_a_map_file_of_another_map_is_refused(sc2, game):
    sc2("3m", enemy_type=12345)
    with pytest.raises(SpecError, match=r"3m.SC2Map is not SMAC's map: it has an enemy of type 12345"):
        game("3m").reset(0)


def test_nothing_is_left_of_a_game_that_does_not_quit(sc2, game, monkeypatch, tmp_path):
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    sc2("3m", hanging_quit=True)
    env = game("3m")
    env.reset(0)
    process = env._battles._games[0]._process._process
    assert list(scratch.iterdir())
    env.close()
    assert process.poll() is not None
    assert not list(scratch.iterdir())


def test_the_replay_is_the_games_own(sc2, game, tmp_path):
    sc2("3m")
    env = game("3m")
    env.reset(0)
    env._battles.save_replay(tmp_path / "battle.SC2Replay")
    assert (tmp_path / "battle.SC2Replay").read_bytes() == b"a replay"
    assert env._battles.version == "4.10.0.75689 (build 75689)"
