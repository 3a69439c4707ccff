"""Our frames against those of Gymnasium's preprocessing and of ale-py's vector environment, bit by bit."""

import ale_py
import cv2
import numpy as np
import pytest
from ale_py.env import AtariEnv
from gymnasium.wrappers import AtariPreprocessing

from marless.learning.envs import registry
from marless.learning.envs.shrinking import Shrinking
from marless_atari.games import names

EXACT = np.testing.assert_array_equal


def reference(game, *, episodic_life=False, sticky=0.0, full_actions=False, mode=None, difficulty=None, **options):
    env = AtariEnv(
        names()[game],
        mode=mode,
        difficulty=difficulty,
        obs_type="grayscale" if options.get("grayscale", True) else "rgb",
        frameskip=1,
        repeat_action_probability=sticky,
        full_action_space=full_actions,
    )
    return AtariPreprocessing(
        env,
        noop_max=options.get("noop_max", 30),
        frame_skip=options.get("frame_skip", 4),
        terminal_on_life_loss=episodic_life,
        screen_size=options.get("screen", 84),
        grayscale_obs=options.get("grayscale", True),
    )


def compare(game, steps, *, copies=1, seed=3, **options):
    """Play random actions in both, episode after episode; returns the numbers of games and of lives that ended."""
    ours = registry.make(f"atari/{game}", options, copies)
    theirs = [reference(game, **options) for _ in range(copies)]
    [seen] = ours.spaces.classes
    rng, ended, lives, frame = np.random.default_rng(seed), 0, 0, ours.reset(seed)

    def shows(row, obs):
        EXACT(row.reshape(seen.image), obs[None] if obs.ndim == 2 else np.moveaxis(obs, -1, 0))

    for b, env in enumerate(theirs):
        assert env.action_space.n == seen.action.n
        shows(frame.obs[0][0, b], env.reset(seed=ours._log.seed(b))[0])
    # An action is held for a while, so that the game is not played on the spot.
    held = rng.integers(seen.action.n, size=(steps // 5, 1, copies), dtype=np.int32)
    for action in np.repeat(held, 5, axis=0):
        moved = ours.step((action,))
        for b, env in enumerate(theirs):
            obs, reward, over, _, _ = env.step(int(action[0, b]))
            assert moved.rewards[0][0, b] == reward
            assert moved.terminated[0][0, b] == over == moved.ended[b]
            shows(moved.final.obs[0][0, b], obs)
            if over and moved.whole[b]:
                ended += 1
                shows(moved.frame.obs[0][0, b], env.reset(seed=ours._log.seed(b))[0])
            elif over:
                lives += 1
                assert moved.unfinished[b]
    return ended, lives


@pytest.mark.parametrize("game", ["Pong", "SpaceInvaders", "Qbert"])
@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_equals_gymnasium_s_preprocessing(game, sticky):
    ended, _ = compare(game, 900, sticky=sticky)
    assert ended


def test_equals_it_over_lives():
    """Gymnasium's wrapper, which is not reset after a life, goes on in the same game, too."""
    ended, lives = compare("Breakout", 500, episodic_life=True, copies=2)
    assert ended and lives > 3


@pytest.mark.parametrize("game", ["BeamRider", "IceHockey", "YarsRevenge", "Gravitar", "AirRaid"])
def test_equals_it_in_games_whose_beginning_depends_on_what_was_before(game):
    """The emulator is not loaded anew, as Gymnasium's is."""
    ours = registry.make(f"atari/{game}", {}, 1)
    rng = np.random.default_rng(0)
    for seed in (4, 5):
        theirs = reference(game)
        EXACT(ours.reset(seed).obs[0][0, 0].reshape(84, 84), theirs.reset(seed=ours._log.seed(0))[0])
        for _ in range(70):
            action = rng.integers(theirs.action_space.n)
            moved, (obs, *_) = ours.step((np.full((1, 1), action, np.int32),)), theirs.step(int(action))
            EXACT(moved.final.obs[0][0, 0].reshape(84, 84), obs)


@pytest.mark.parametrize(
    "options",
    [
        {"grayscale": False, "screen": 96},
        {"frame_skip": 1, "noop_max": 0},
        {"frame_skip": 2, "screen": 160, "full_actions": True},
        {"frame_skip": 5, "screen": 17, "sticky": 0.1},
        {"mode": 2, "difficulty": 1},
    ],
)
def test_options_mean_what_gymnasium_means(options):
    compare("SpaceInvaders", 120, **options)


def test_fire_is_pressed_as_in_ale_py_s_vector_environment():
    ours = registry.make("atari/Breakout", {"fire_reset": True, "noop_max": 0}, 1)
    theirs = ale_py.AtariVectorEnv("breakout", num_envs=1, noop_max=0, use_fire_reset=True, stack_num=1)
    frame, (obs, _) = ours.reset(0), theirs.reset(seed=0)
    rng, launched = np.random.default_rng(1), False
    for _ in range(60):
        EXACT(frame.obs[0][0, 0].reshape(84, 84), obs[0, 0])
        action = int(rng.integers(2, 4))  # to the sides only
        frame = ours.step((np.full((1, 1), action, np.int32),)).frame
        obs = theirs.step(np.array([action]))[0]
        launched |= bool(frame.obs[0][0, 0].reshape(84, 84)[45:70].any())
    assert launched  # otherwise Breakout has no ball
    theirs.close()


@pytest.mark.parametrize("size", [17, 31, 64, 84, 96, 128, 159, 160])
@pytest.mark.parametrize("height", [210, 250])
def test_shrinking_is_opencv_s(size, height):
    """Two values make many means that end in one half, which the order of sums decides."""
    rng = np.random.default_rng(size)
    shrink = Shrinking((height, 160), (size, size))
    for low in (0, 254):
        picture = rng.choice(np.array([low, 255], np.uint8), (3, height, 160))
        picture[1] = rng.integers(0, 256, (height, 160))
        wanted = cv2.resize(np.moveaxis(picture, 0, -1), (size, size), interpolation=cv2.INTER_AREA)
        EXACT(shrink(picture), np.moveaxis(wanted, -1, 0))
