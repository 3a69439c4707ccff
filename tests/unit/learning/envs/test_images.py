"""Images of Gymnasium's and PettingZoo's environments: which they are, what is seen of them, and broken ones."""

import re
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv

from marless.core.errors import SpecError
from marless.core.process_environment import ENV_MODULES
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions
from marless.learning.envs.contract import check_env
from marless.learning.envs.gymnasium.adapter import GymnasiumEnv
from marless.learning.envs.gymnasium.images import WHOLE, ImageLook, reader
from marless.learning.envs.gymnasium.spaces import codec
from marless.learning.envs.pettingzoo.adapter import PettingZooEnv

PIXELS = Box(0, 255, (8, 10, 3), np.uint8)


class Painted(gymnasium.Env):
    """An image that grows brighter by a step; `later` is what it observes from the third step on instead."""

    observation_space, action_space = PIXELS, Discrete(2)

    def __init__(self, later=None):
        self.later = later

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.first = 0, self.np_random.integers(0, 200, PIXELS.shape, dtype=np.uint8)
        return self.first, {}

    def step(self, action):
        self.t += 1
        seen = self.first + np.uint8(self.t) if self.later is None or self.t < 3 else self.later
        return seen, float(action), self.t == 7, False, {}


class Pair(ParallelEnv):
    """Two agents that see the image of `Painted`."""

    metadata = {"name": "pair"}
    possible_agents = ("a_0", "a_1")

    def __init__(self, later=None):
        self.inner = Painted(later)

    def observation_space(self, agent):
        return PIXELS

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        seen, _ = self.inner.reset(seed=seed)
        return dict.fromkeys(self.agents, seen), {}

    def step(self, actions):
        seen, _, over, _, _ = self.inner.step(0)
        told = list(self.agents)
        self.agents = [] if over else told
        return dict.fromkeys(told, seen), dict.fromkeys(told, 0.0), dict.fromkeys(told, over), {}, {}


@pytest.mark.parametrize(
    ("space", "image"),
    [
        (Box(0, 255, (8, 10, 3), np.uint8), (3, 8, 10)),
        (Box(0, 255, (8, 10, 4), np.uint8), (4, 8, 10)),
        (Box(0, 255, (8, 10, 1), np.uint8), (1, 8, 10)),
        (Box(0, 255, (8, 10), np.uint8), (1, 8, 10)),
        (Box(0, 255, (4, 8, 10), np.uint8), (4, 8, 10)),
        (Box(0, 255, (7, 10, 3), np.uint8), None),  # a grid
        (Box(0, 255, (8, 10, 2), np.uint8), None),
        (Box(0, 254, (8, 10, 3), np.uint8), None),
        (Box(0, 255, (8, 10, 3), np.float32), None),
        (Box(0, 255, (240,), np.uint8), None),
        (Dict(eye=PIXELS), None),
    ],
)
def test_what_is_an_image(space, image):
    known, _ = codec(space, Discrete(2))
    assert known.image == image
    assert known.obs_size == gymnasium.spaces.flatdim(space)


def test_an_image_beside_a_mask_is_one():
    space = Dict(observation=PIXELS, action_mask=Box(0, 1, (2,), np.int8))
    assert codec(space, Discrete(2))[0].image == (3, 8, 10)


def test_channels_come_first():
    picture = np.arange(240, dtype=np.uint8).reshape(8, 10, 3)
    np.testing.assert_array_equal(reader(PIXELS, WHOLE)(picture).reshape(3, 8, 10)[1], picture[:, :, 1])


def test_images_are_made_smaller_and_gray():
    """0.299 · 100 + 0.587 · 50 + 0.114 · 200 = 82.05; of 2 × 2 pixels, one is black: three quarters are left, 61.5."""
    picture = np.tile(np.array([100, 50, 200], np.uint8), (8, 10, 1))
    picture[::2, ::2] = 0
    seen = reader(PIXELS, ImageLook((4, 5), grayscale=True))
    assert seen.shape == (1, 4, 5)
    assert set(seen(picture).tolist()) <= {61, 62}
    assert reader(PIXELS, ImageLook(grayscale=True))(picture).reshape(8, 10)[1, 1] == 82
    assert reader(PIXELS, ImageLook((4, 5))).shape == (3, 4, 5)


@pytest.mark.parametrize("channels", [3, 4])
def test_brightness_is_that_of_each_pixel_however_the_colours_lie(channels):
    """As of frames of pygame, whose colours lie backwards; a fourth channel, how opaque, counts for nothing."""
    picture = np.random.default_rng(0).integers(0, 256, (8, 10, channels), np.uint8)
    backwards = np.ascontiguousarray(picture[:, ::-1, ::-1])[:, ::-1, ::-1]
    seen = reader(Box(0, 255, picture.shape, np.uint8), ImageLook(grayscale=True))
    expected = np.rint(picture[:, :, :3] @ np.array([0.299, 0.587, 0.114], np.float32)).ravel()
    np.testing.assert_array_equal(seen(picture), expected)
    np.testing.assert_array_equal(seen(backwards), expected)


@pytest.mark.parametrize("made", [lambda n: GymnasiumEnv([Painted() for _ in range(n)]), None])
def test_bytes_keep_the_contract(made):
    made = made or (
        lambda n: PettingZooEnv([Pair() for _ in range(n)], look=ImageLook((4, 4), grayscale=True), turns=False)
    )
    env = made(2)
    [agents] = env.spaces.classes
    assert agents.image == ((3, 8, 10) if agents.name == "agent" else (1, 4, 4))
    assert env.reset(0).obs[0].dtype == np.uint8
    check_env(made, steps=20)


@pytest.mark.parametrize(
    ("later", "found"),
    [
        (np.zeros((8, 9, 3), np.uint8), "uint8[8, 9, 3]"),
        (np.zeros((10, 8, 3), np.uint8), "uint8[10, 8, 3]"),
        (np.zeros((8, 10, 3), np.float32), "float32[8, 10, 3]"),
        (np.zeros((8, 10, 3), np.int64), "int64[8, 10, 3]"),
    ],
)
@pytest.mark.parametrize("adapter", [GymnasiumEnv, PettingZooEnv])
def test_a_frame_of_another_size_or_dtype_names_copy_and_step(adapter, later, found):
    game = Painted if adapter is GymnasiumEnv else Pair
    env = adapter([game(), game(later)])
    env.reset(0)
    actions = (np.zeros((len(env.spaces.agents), 2), np.int32),)
    for _ in range(2):
        env.step(actions)
    said = f"copy 1 at step 3 of its episode observes an array {found}, its space is Box(0, 255, (8, 10, 3), uint8)"
    with pytest.raises(SpecError, match=re.escape(said)):
        env.step(actions)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resize": [84]}, "resize must be two whole numbers, [height, width], got [84]"),
        ({"resize": 84}, "resize must be two whole numbers, [height, width], got 84"),
        ({"resize": [84, 0]}, "resize must be two whole numbers"),
        ({"resize": [84, 121]}, "resize [84, 121] is larger than images of 457 × 120; it can only be smaller"),
        ({"grayscale": 1}, "grayscale must be true or false, got 1"),
    ],
)
def test_impossible_looks_are_refused(options, said):
    with pytest.raises(SpecError, match=re.escape(said)):
        registry.make("pettingzoo/pistonball_v6", options, 1)


def test_only_images_can_be_resized():
    with pytest.raises(SpecError, match="resize and grayscale are for agents that observe images"):
        registry.make("pettingzoo/knights_archers_zombies_v11", {"resize": [84, 84]}, 1)


@pytest.mark.parametrize(
    ("name", "options", "image"),
    [
        ("pistonball_v6", {"render_mode": "rgb_array"}, (3, 457, 120)),
        ("pistonball_v6", {"resize": [84, 84], "grayscale": True, "render_mode": "rgb_array"}, (1, 84, 84)),
        ("cooperative_pong_v6", {"resize": [70, 120], "render_mode": "rgb_array"}, (3, 70, 120)),
        ("knights_archers_zombies_v11", {}, None),
        ("knights_archers_zombies_v11", {"obs_method": "image", "resize": [84, 84]}, (3, 84, 84)),
    ],
)
def test_pettingzoo_s_games_of_pixels(name, options, image):
    env = registry.make(f"pettingzoo/{name}", options, 1, with_state=False)
    frame = env.reset(0)
    assert {agents.image for agents in env.spaces.classes} == {image}
    assert not env.spaces.turns, "so that images can be stacked"
    assert frame.obs[0].dtype == (np.float32 if image is None else np.uint8)
    before = frame.obs[0].copy()
    moved = env.step(random_actions(env.spaces, frame, np.random.default_rng(0)))
    assert (moved.final.obs[0] != before).any(), "what is done can be seen"
    env.close()


@pytest.mark.parametrize("name", ["pistonball_v6", "cooperative_pong_v6"])
def test_a_game_that_does_not_draw_what_its_agents_see_is_refused(name):
    said = "what its agents observe stays the same for 20 steps .*; set env.options: {render_mode: rgb_array}"
    with pytest.raises(SpecError, match=said):
        registry.make(f"pettingzoo/{name}", {}, 2)


class Still(Pair):
    """Its picture changes between episodes, of three steps each; and by steps if it is rendered."""

    metadata = {"name": "still"}

    def __init__(self, render_mode=None, draws=True):
        super().__init__()
        self.moves = draws and render_mode == "rgb_array"

    def step(self, actions):
        told = list(self.agents)
        self.inner.t += 1
        self.agents = [] if self.inner.t == 3 else told
        seen, over = self.inner.first + np.uint8(self.moves * self.inner.t), dict.fromkeys(told, not self.agents)
        return dict.fromkeys(told, seen), dict.fromkeys(told, 0.0), over, {}, {}


class Unrendered(Still):
    def __init__(self):
        super().__init__()


@pytest.fixture
def gallery(monkeypatch):
    monkeypatch.setenv(ENV_MODULES, "gallery")
    return lambda game: monkeypatch.setitem(sys.modules, "gallery", SimpleNamespace(parallel_env=game))


def test_a_new_episode_s_picture_is_no_drawing(gallery):
    gallery(Still)
    with pytest.raises(SpecError, match="stays the same for 20 steps"):
        registry.make("pettingzoo/gallery", {}, 1)
    assert registry.make("pettingzoo/gallery", {"render_mode": "rgb_array"}, 1).spaces.classes[0].image == (3, 8, 10)


@pytest.mark.parametrize(("game", "options"), [(Still, {"draws": False}), (Unrendered, {})])
def test_a_game_that_no_render_mode_moves_may_stand_still(gallery, game, options):
    gallery(game)
    assert registry.make("pettingzoo/gallery", options, 1).spaces.classes[0].image == (3, 8, 10)
