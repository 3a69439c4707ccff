"""What no reference tells: contracts, carried episodes, whole games of several lives, pictures, mistakes."""

import numpy as np
import pytest

from marless.core.errors import CorruptError, SpecError
from marless.learning.data.episodes import EpisodeMeter
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions
from marless.learning.envs.contract import check_env
from marless_atari import games
from marless_atari.options import AtariOptions


def make(game="Breakout", batch=1, **options):
    return registry.make(f"atari/{game}", options, batch)


def played(env, steps, seed=3):
    """Copies of all that random steps show, as bytes."""
    rng, frame = np.random.default_rng(seed), env.reset(seed)
    seen = [frame.obs[0].tobytes()]
    for _ in range(steps):
        moved = env.step(random_actions(env.spaces, frame, rng))
        frame = moved.frame
        seen += [frame.obs[0].tobytes(), moved.rewards[0].tobytes(), moved.ended.tobytes()]
    return seen


@pytest.mark.parametrize(
    "options", [{"max_frames": 90}, {"sticky": 0.25, "max_frames": 90}, {"episodic_life": True, "fire_reset": True}]
)
def test_keeps_the_contract(options):
    def breakout(batch):
        return make("Breakout", batch, noop_max=3, frame_skip=9, **options)

    check_env(breakout, steps=40)


def test_a_seed_determines_all_games():
    env = make("Qbert", 2, sticky=0.25)
    once = played(env, 150)
    assert once == played(env, 150) == played(make("Qbert", 2, sticky=0.25), 150)
    assert once != played(env, 150, seed=4)


@pytest.mark.parametrize("game", ["Pong", "SpaceInvaders", "Qbert", "Breakout"])
def test_carried_games_go_on_bit_for_bit(game):
    """Saved at several times, one of them right after a life was lost, and loaded where another game was played."""
    env, other = (make(game, 2, episodic_life=True, sticky=0.25) for _ in range(2))
    rng, frame, lost = np.random.default_rng(0), env.reset(1), 0
    other.reset(9)
    for step in range(300):
        moved = env.step(random_actions(env.spaces, frame, rng))
        frame = moved.frame
        lost += bool(moved.unfinished.any())
        if step in (0, 120, 299) or (moved.unfinished.any() and lost == 1):
            np.testing.assert_array_equal(other.load(env.save()).obs[0], frame.obs[0])
            for _ in range(30):
                actions = random_actions(env.spaces, frame, rng)
                moved, again = env.step(actions), other.step(actions)
                frame = moved.frame
                np.testing.assert_array_equal(moved.final.obs[0], again.final.obs[0])
                np.testing.assert_array_equal(frame.obs[0], again.frame.obs[0])
                np.testing.assert_array_equal(moved.rewards[0], again.rewards[0])
    assert lost or game == "Pong"  # which has no lives


def test_returns_are_those_of_whole_games():
    """A game of Breakout has five lives; its rewards are the same whether a life is an episode or not."""
    whole, lives = make(), make(episodic_life=True)
    meters, ends, rng = [EpisodeMeter(env.spaces, 1) for env in (whole, lives)], 0, np.random.default_rng(0)
    for env in (whole, lives):
        env.reset(0)
    while not meters[0].episodes:
        action = (rng.integers(4, size=(1, 1), dtype=np.int32),)
        moved, parts = whole.step(action), lives.step(action)
        meters[0].add(moved)
        meters[1].add(parts)
        ends += int(parts.ended[0])
        # The frames after a loss within the four of an env step are played in one case only.
        if parts.unfinished[0]:
            break
    assert ends == 1 and meters[1].episodes == 0 and meters[1].steps_B[0] > 0
    while not meters[1].episodes:
        parts = lives.step((rng.integers(4, size=(1, 1), dtype=np.int32),))
        meters[1].add(parts)
        ends += int(parts.ended[0])
        assert parts.terminated[0][0, 0] == parts.ended[0]
    assert ends == 5 and meters[1].episodes == 1
    assert meters[1].stats().return_sum["agent_0"] >= 0


def test_a_game_is_truncated_after_its_frames():
    env = make("Pong", 2, max_frames=30, noop_max=7)
    assert env.spaces.max_steps == 8
    frame, rng = env.reset(0), np.random.default_rng(0)
    for step in range(1, 17):
        moved = env.step(random_actions(env.spaces, frame, rng))
        assert moved.truncated.tolist() == moved.ended.tolist() == [step % 8 == 0] * 2
        assert not moved.terminated[0].any()


def test_pictures_are_the_whole_screen():
    env = make("Pong", max_frames=20)
    frame, rng = env.reset(0), np.random.default_rng(0)
    assert env.picture().shape == (210, 160, 3)
    for _ in range(5):
        before = env.picture()
        moved = env.step(random_actions(env.spaces, frame, rng))
    assert moved.ended[0] and len(np.unique(env.picture(ended=True).reshape(-1, 3), axis=0)) > 3
    assert not np.array_equal(env.picture(ended=True), env.picture())
    assert not np.array_equal(before, env.picture())


def test_all_games_of_one_player_are_there():
    assert len(games.names()) == 104
    assert {"Pong", "SpaceInvaders", "Qbert", "Gravitar", "MontezumaRevenge", "MsPacman"} <= games.names().keys()
    assert "Warlords" not in games.names()
    for rom in games.names().values():
        assert games.ALEInterface.isSupportedROM(games.roms.get_rom_path(rom)) == rom


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stiky": 0.25}, "did you mean 'sticky'?"),
        ({"sticky": 1}, "sticky must be a probability, at least 0 and below 1, got 1"),
        ({"sticky": True}, "sticky must be a probability"),
        ({"frame_skip": 0}, "frame_skip must be a whole number from 1 to 100, got 0"),
        ({"screen": 161}, "screen must be a whole number from 17 to 160, got 161"),
        ({"noop_max": 1.5}, "noop_max must be a whole number"),
        ({"episodic_life": "yes"}, "episodic_life must be true or false, got 'yes'"),
        ({"mode": 99}, "has no mode 99; known: 0, 4, 8"),
        ({"difficulty": 7}, "has no difficulty 7; known: 0, 1"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options, said):
    with pytest.raises(SpecError, match=r"^environment atari/Breakout: ") as caught:
        make(**options)
    assert said in str(caught.value)


def test_an_unknown_game_gets_the_nearest_name():
    with pytest.raises(SpecError, match="environment atari/SpaceInvader: unknown game 'SpaceInvader'; did you mean"):
        make("SpaceInvader")
    with pytest.raises(SpecError, match="environment atari/pong: unknown game 'pong'; did you mean 'Pong'"):
        make("pong")
    with pytest.raises(SpecError, match="unknown game 'Warlords'"):
        make("Warlords")


def test_a_missing_rom_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(SpecError, match=r"the ROM pong\.bin cannot be read: .*ALE_ROMS_DIR"):
        make("Pong")
    (tmp_path / "pong.bin").write_bytes(b"no game")
    with pytest.raises(SpecError, match=r"the ROM pong\.bin cannot be read: "):
        make("Pong")


def test_damaged_saves_are_refused():
    env = make("Pong", 2)
    env.reset(0)
    env.step((np.zeros((1, 2), np.int32),))
    with pytest.raises(CorruptError, match="saved environment: action/0"):
        env.load(env.save() | {"action/0": np.full((2, 1), 6, np.uint8)})


def test_defaults_are_deepmind_s():
    assert AtariOptions() == AtariOptions(
        sticky=0.0, frame_skip=4, noop_max=30, max_frames=108_000, screen=84, grayscale=True, episodic_life=False
    )
