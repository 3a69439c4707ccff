"""Films are read back: as many pictures as states, and everything where the environment has it."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from mpe2 import simple_spread_v3
from PIL import Image, ImageColor

import marless
from marless.core.errors import SpecError
from marless.core.process_environment import ENV_MODULES
from marless.learning.envs import registry
from marless.learning.envs.base import Scene
from marless.learning.envs.replayed import EpisodeLog
from marless.learning.policies import drawing
from marless.learning.policies.film import film, shoot
from tests.scripted_env import ScriptedEnv
from tests.unit.learning.policies.saved import save, state


def trained(place, env: str, **options) -> marless.Team:
    """A team of random policies, one an agent, for an environment."""
    spaces = registry.spaces(env, options)
    sizes = {agent: agents.obs_size for agents in spaces.classes for agent in agents.agents}
    action = {agent: agents.action for agents in spaces.classes for agent in agents.agents}
    states = {agent: state(size, action[agent], seed=i) for i, (agent, size) in enumerate(sizes.items())}
    save(place / "job", states, {agent: (agent,) for agent in states})
    return marless.load_policy(place / "job")


def pictures(path) -> list[np.ndarray]:
    with Image.open(path) as gif:
        found = []
        for i in range(gif.n_frames):
            gif.seek(i)
            found.append(np.asarray(gif.convert("RGB")).astype(int))
        return found


def is_colour(picture: np.ndarray, place: np.ndarray, reach: float, colour: str) -> bool:
    """The pixel at a place of the plane has this colour, as near as a GIF's palette can."""
    x, y = drawing.pixel(place, reach)
    return np.abs(picture[int(y), int(x)] - ImageColor.getrgb(colour)).max() < 25


def is_goal(scene: Scene, mark: np.ndarray) -> bool:
    return scene.goal is not None and bool((mark == scene.goal).all())


def test_discs_have_the_size_of_their_entity_and_the_smaller_is_on_top():
    stage = registry.make("mpe/simple_tag", {"num_adversaries": 1, "num_obstacles": 1}, 1)
    stage.reset(0)
    assert stage.picture().radii.tolist() == [0.075, 0.05, 0.2]
    scene = replace(stage.picture(), agents=np.array([[0.7, 0.7], [0.1, 0.0]]), landmarks=np.zeros((1, 2)))
    (image,) = drawing.draw([scene], [""], stage.spaces)
    picture, reach = np.asarray(image, int), 1.0 + drawing.MARGIN
    for place, colour in [
        ((0.1, 0.0), drawing.COLOURS[0]),
        ((-0.18, 0.0), drawing.INK),
        ((-0.22, 0.0), drawing.PAPER),
        ((0.76, 0.7), drawing.COLOURS[1]),
        ((0.79, 0.7), drawing.PAPER),
    ]:
        assert is_colour(picture, np.array(place), reach, colour)


@pytest.mark.parametrize(
    ("env", "options", "colours"),
    [
        ("mpe/simple_spread", {"agents": 2, "max_cycles": 7}, [drawing.COLOURS[0]] * 2),
        ("mpe/simple_adversary", {"max_cycles": 7}, [drawing.COLOURS[1], *[drawing.COLOURS[0]] * 2]),
    ],
)
def test_a_film_shows_every_state_of_an_episode(tmp_path, env, options, colours):
    team = trained(tmp_path, env, **options)
    count = film(team, tmp_path / "film.gif", env, options, seed=3)
    found = pictures(tmp_path / "film.gif")
    assert count == len(found) == 8
    assert {picture.shape for picture in found} == {(drawing.SIDE_PIXELS + drawing.CAPTION_PIXELS, 400, 3)}
    # The same episode, by hand: what the environment says is what the film shows.
    stage = registry.make(env, options, 1)
    frame, policies, scenes, total = stage.reset(3), team.acting(stage.spaces), [], 0.0
    for _ in range(7):
        scenes.append(stage.picture())
        transition = stage.step(tuple(p.greedy(frame.obs[k], None) for k, p in enumerate(policies)))
        frame, total = transition.frame, total + transition.rewards[-1].mean()
    scenes.append(stage.picture(ended=True))
    reach = max(1.0, *(np.abs([*s.agents, *s.landmarks]).max() for s in scenes)) + drawing.MARGIN
    assert np.abs(scenes[-1].agents - scenes[0].agents).max() > 0.1
    np.testing.assert_array_equal(scenes[-1].landmarks, scenes[0].landmarks)
    checked = 0
    for picture, scene in zip(found, scenes, strict=True):
        for i, (place, colour) in enumerate(zip(scene.agents, colours, strict=True)):
            above = np.array([*scene.agents[i + 1 :], *scene.landmarks])
            if np.linalg.norm(above - place, axis=1).min() > 2 * drawing.AGENT_RADIUS:
                assert is_colour(picture, place, reach, colour)
                checked += 1
        for mark in scene.landmarks:
            assert is_colour(picture, mark, reach, drawing.GOAL if is_goal(scene, mark) else drawing.INK)
    assert checked > 8
    captions = [shot.caption for shot in shoot(team, registry.make(env, options, 1), seed=3, explore=False)]
    assert captions[0].startswith("step 0    return per ")
    assert captions[-1].startswith("step 7 ")
    assert captions[-1].endswith(f"agent {total:.2f}")
    assert all((a[drawing.SIDE_PIXELS :] != b[drawing.SIDE_PIXELS :]).any() for a, b in pairwise(found))


def test_a_png_shows_moments_of_the_episode_beside_each_other(tmp_path):
    team, env = trained(tmp_path, "smac/3m"), registry.make("smac/3m", {}, 1)
    count = film(team, tmp_path / "film.png", "smac/3m", seed=3)
    shots = shoot(team, env, seed=3, explore=False)
    height, width, _ = shots[0].picture.shape
    with Image.open(tmp_path / "film.png") as sheet:
        found = np.asarray(sheet)
    assert count == len(shots) > drawing.SHEET
    assert found.shape == (3 * (height + drawing.CAPTION_PIXELS), 3 * width, 3)
    assert (found[:height, :width] == shots[0].picture).all()
    assert (found[-height - drawing.CAPTION_PIXELS :][:height, -width:] == shots[-1].picture).all()


def test_the_plane_is_shown_upright_around_its_origin():
    for place, pixel in (((0, 0), (200, 200)), ((1, 2), (300, 0)), ((-2, -1), (0, 300))):
        assert drawing.pixel(np.array(place, float), 2.0) == pixel


def test_the_last_picture_rests(tmp_path):
    team = trained(tmp_path, "mpe/simple_spread", agents=2, max_cycles=3)
    film(team, tmp_path / "film.gif", options={"max_cycles": 3}, seed=0, explore=True)
    with Image.open(tmp_path / "film.gif") as gif:
        durations = []
        for i in range(gif.n_frames):
            gif.seek(i)
            durations.append(gif.info["duration"])
        assert (durations, gif.info["loop"]) == ([drawing.STEP_MS] * 3 + [drawing.LAST_MS], 0)


def test_an_environment_of_pettingzoo_draws_itself(tmp_path):
    team = trained(tmp_path, "mpe/simple_spread", agents=2)
    count = film(team, tmp_path / "film.gif", "pettingzoo/mpe2.simple_spread_v3", {"N": 2, "max_cycles": 4}, seed=1)
    found = pictures(tmp_path / "film.gif")
    assert count == len(found) == 5
    env = simple_spread_v3.parallel_env(N=2, max_cycles=4, render_mode="rgb_array")
    log = EpisodeLog((), 1)
    log.begin(1)
    seen, _ = env.reset(seed=log.seed(0))
    drawn = [env.render()]
    while env.agents:
        seen, *_ = env.step(team.act(seen))
        drawn.append(env.render())
    for picture, expected in zip(found, drawn, strict=True):
        assert picture.shape == (700 + drawing.CAPTION_PIXELS, 700, 3)
        assert np.abs(picture[:700] - expected).max() < 25
    assert (drawn[-1] != drawn[-2]).any()


def test_what_cannot_be_filmed_is_one_sentence(tmp_path, monkeypatch):
    team = trained(tmp_path, "mpe/simple_spread", agents=2)
    with pytest.raises(SpecError, match="it shows no pictures"):
        shoot(team, ScriptedEnv(1), seed=0, explore=False)
    with pytest.raises(SpecError, match="environment mpe/simple_spread: no policy for agent_2 of this environment"):
        film(team, tmp_path / "film.gif", options={"agents": 3}, seed=0)
    monkeypatch.setenv(ENV_MODULES, "tests")
    with pytest.raises(
        SpecError, match=r"unknown option 'render_mode'.* filmed only if it takes render_mode: rgb_array"
    ):
        film(team, tmp_path / "film.gif", "pettingzoo/tests.unit.learning.policies.plain_env:Plain", seed=0)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "marless.learning.policies.drawing")
    monkeypatch.delattr("marless.learning.policies.drawing", raising=False)
    with pytest.raises(SpecError, match=r"pip install 'marless\[render\]'"):
        film(team, tmp_path / "film.gif", seed=0)
    assert not (tmp_path / "film.gif").exists()


def test_an_environment_of_gymnasium_draws_itself(tmp_path):
    team = trained(tmp_path, "gymnasium/CartPole-v1", max_episode_steps=3)
    count = film(team, tmp_path / "film.gif", "gymnasium/CartPole-v1", {"max_episode_steps": 3}, seed=1)
    found = pictures(tmp_path / "film.gif")
    assert count == len(found) == 4
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    log = EpisodeLog((), 1)
    log.begin(1)
    observation, _ = env.reset(seed=log.seed(0))
    drawn = [env.render()]
    for _ in range(3):
        observation, *_ = env.step(team.act({"agent_0": observation})["agent_0"])
        drawn.append(env.render())
    for picture, expected in zip(found, drawn, strict=True):
        assert picture.shape == (400 + drawing.CAPTION_PIXELS, 600, 3)
        assert np.abs(picture[:400].astype(int) - expected).max() < 25
    assert (drawn[-1] != drawn[-2]).any()
