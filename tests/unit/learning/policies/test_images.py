"""A loaded policy of images acts on bytes and on the same pixels in [0, 1] alike, and refuses what is neither."""

import numpy as np
import pytest

import marless
from marless.core.errors import CorruptError, SpecError
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.envs.synthetic import SyntheticEnv
from marless.learning.nets.acting import ActingState
from tests.unit.learning.policies.saved import outputs, save, state

IMAGE = (1, 4, 3)
PIXELS = np.random.default_rng(1).integers(256, size=(5, *IMAGE), dtype=np.uint8)


def of_images(image: str = "1,4,3") -> ActingState:
    made = state(12, Discrete(3), seed=2)
    return ActingState(made.acting, {**made.metadata, "observes": "12", "image": image})


@pytest.fixture
def team(tmp_path) -> marless.Team:
    save(tmp_path / "run", {"x": of_images()}, {"x": ("x",)})
    found = marless.load_policy(tmp_path / "run")
    found.export("x", tmp_path / "x.safetensors")
    return marless.load_policy(tmp_path / "x.safetensors")


def test_bytes_and_scaled_numbers_are_one_image(team):
    expected = [int(outputs(of_images(), image.ravel() / 255).argmax()) for image in PIXELS]
    flat = PIXELS.reshape(5, 12)
    scaled = PIXELS / np.float32(255)
    for seen in (PIXELS, flat, PIXELS.astype(np.int64), scaled, scaled.reshape(5, 12).tolist()):
        assert team.act({"x": seen})["x"].tolist() == expected
    assert [team.act({"x": image})["x"] for image in PIXELS] == expected


def test_a_policy_of_several_images_is_shown_one_at_a_time(tmp_path):
    of_two = state(24, Discrete(3), seed=2)
    metadata = {**of_two.metadata, "observes": "12", "image": "1,4,3", "frames": "2"}
    save(tmp_path / "run", {"x": ActingState(of_two.acting, metadata)}, {"x": ("x",)})
    team = marless.load_policy(tmp_path / "run")
    assert team.remembers
    flat = PIXELS.reshape(5, 12) / 255
    for first in (0, 2):
        team.begin()
        for t in range(first, 5):
            expected = np.concatenate([flat[max(t - 1, first)], flat[t]])
            assert team.act({"x": PIXELS[t]})["x"] == int(outputs(of_two, expected).argmax())


@pytest.mark.parametrize("frames", ["0", "17", "2.0", "a"])
def test_a_number_of_images_that_is_none_is_refused(tmp_path, frames):
    made = of_images()
    made = ActingState(made.acting, {**made.metadata, "frames": frames})
    save(tmp_path / "run", {"x": made}, {"x": ("x",)})
    with pytest.raises(CorruptError, match=r"frames is .*, expected 1 to 16"):
        marless.load_policy(tmp_path / "run")


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (PIXELS[:, :, :3], r"x observes images \[1, 4, 3\], \[12\] or a batch of them, got uint8\[5, 1, 3, 3\]"),
        (PIXELS.astype(np.float32), "has values outside of 0…1; images are bytes"),
        (PIXELS.astype(np.int64) + 1, r"outside of 0…255"),
        (PIXELS / 255 * np.nan, r"outside of 0…1"),
        ("image", r"got str"),
    ],
)
def test_what_is_no_image_is_refused(team, seen, sentence):
    with pytest.raises(SpecError, match=sentence):
        team.act({"x": seen})


@pytest.mark.parametrize("image", ["1,4,4", "12", "1,-4,-3", "a", "1,2,2,3", "1,٤,3"])
def test_a_policy_of_another_image_than_its_weights_is_refused(tmp_path, image):
    save(tmp_path / "run", {"x": of_images(image)}, {"x": ("x",)})
    with pytest.raises(CorruptError, match="image"):
        marless.load_policy(tmp_path / "run")


def test_policies_of_vectors_do_not_act_on_images(tmp_path):
    agents = AgentClass("walker", ("x",), 12, Discrete(3), IMAGE)
    spaces = SyntheticEnv(EnvSpaces((agents,), 0, None), 1).spaces
    save(tmp_path / "run", {"x": state(12, Discrete(3), seed=2)}, {"x": ("x",)})
    with pytest.raises(
        SpecError, match=r"its policies read vectors, its agents observe observes: .12., image: .1,4,3."
    ):
        marless.load_policy(tmp_path / "run").acting(spaces)
