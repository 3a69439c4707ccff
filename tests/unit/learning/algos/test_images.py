"""Images are bytes until a net reads them: then they are what the same pixels are as vectors of v / 255."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.core.settings import CurvatureSpec, Measure
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.training import images
from marless.learning.algos.training.images import ImageReader, RoundImages
from marless.learning.algos.training.table import tabulate
from marless.learning.data.rollout import Lane
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.learning.envs.synthetic import SyntheticEnv
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.net_kind import InputShape
from marless.learning.similarity.measures import PolicyDistanceConfig
from tests.unit.learning.algos import rounds

IMAGE = (2, 3, 4)
DISCRETE = EnvSpaces(
    (AgentClass("walker", rounds.AGENTS, 24, Discrete(4), IMAGE),),
    state_size=6,
    max_steps=5,
    masks=True,
    deaths=True,
    rewards="cooperative",
)
CONTINUOUS = replace(
    DISCRETE, classes=(AgentClass("walker", rounds.AGENTS, 24, Box((-1.0,), (1.0,)), IMAGE),), masks=False, deaths=False
)
DRAWN = {"warmup": 8, "updates": 2, "batch": 6, "replay": {"capacity": 200}}
PAIRS = (Group("a", ("a", "c")), Group("b", ("b", "d")))
PPO = {"epochs": 2, "minibatches": 3}
JOBS = [
    ("ippo", PPO, {}, DISCRETE),
    ("ippo", PPO, {"recurrent": "gru"}, DISCRETE),
    ("ippo", PPO | {"advantage": "vtrace"}, {"agent_id": True}, DISCRETE),
    ("mappo", PPO, {}, DISCRETE),
    ("impact", PPO | {"batches": 2}, {}, DISCRETE),
    ("iql", DRAWN, {}, DISCRETE),
    ("iql", DRAWN | {"n_step": 3}, {"recurrent": "gru"}, DISCRETE),
    ("vdn", DRAWN, {"agent_id": True}, DISCRETE),
    ("qmix", DRAWN, {}, DISCRETE),
    ("pqn", PPO, {"recurrent": "gru"}, DISCRETE),
    ("pqn_vdn", PPO, {"agent_id": True}, DISCRETE),
    ("iddpg", DRAWN, {}, CONTINUOUS),
    ("maddpg", DRAWN, {}, CONTINUOUS),
    ("sac", DRAWN | {"random_steps": 0}, {}, CONTINUOUS),
]


def vectors(spaces: EnvSpaces) -> EnvSpaces:
    """The spaces in which the same pixels are observed as vectors."""
    return replace(spaces, classes=tuple(replace(each, image=None) for each in spaces.classes))


def as_vectors(trajectory: Trajectory) -> Trajectory:
    white = np.float32(255)
    arrays = {name: a.astype(np.float32) / white if a.dtype == np.uint8 else a for name, a in trajectory.arrays.items()}
    return Trajectory(arrays)


@pytest.mark.parametrize(("name", "settings", "model", "spaces"), JOBS)
def test_nets_learn_from_images_what_they_learn_from_the_same_numbers(name, settings, model, spaces):
    made = [
        rounds.learner(name, each, PAIRS, model=rounds.MODEL.model_copy(update=model), **settings)
        for each in (spaces, vectors(spaces))
    ]
    first = rounds.flat(made[0].state("a"))
    for number in range(2):
        seen = [rounds.trajectory(spaces, 10 * number + actor) for actor in range(3)]
        for learner, given in zip(made, (seen, list(map(as_vectors, seen))), strict=True):
            learner.update(rounds.inputs(PAIRS, given, number))
    for state in ("a", "b"):
        found = rounds.flat(made[0].state(state))
        assert found == rounds.flat(made[1].state(state))
        assert found != first


def measured(inputs: RoundInput) -> RoundInput:
    return replace(
        inputs,
        measure=Measure(
            curvature=CurvatureSpec.model_validate({"samples": 8, "steps": 2}),
            noise=True,
            similarity=PolicyDistanceConfig.model_validate({"samples": 8}),
        ),
    )


@pytest.mark.parametrize("name", ["ippo", "iql", "pqn"])
def test_curvature_noise_and_similarity_of_images_are_those_of_the_same_numbers(name):
    settings = DRAWN if name == "iql" else PPO
    seen = [rounds.trajectory(DISCRETE, actor) for actor in range(3)]
    found = []
    for spaces, given in ((DISCRETE, seen), (vectors(DISCRETE), list(map(as_vectors, seen)))):
        learner = rounds.learner(name, spaces, rounds.INDEPENDENT, **settings)
        found.append(learner.update(measured(rounds.inputs(rounds.INDEPENDENT, given))))
    assert found[0].metrics == found[1].metrics
    assert {"curvature", "noise_scale"} <= found[0].metrics["a"].keys()
    assert found[0].distances["walker"].any()
    assert np.array_equal(found[0].distances["walker"], found[1].distances["walker"])


@pytest.mark.parametrize("name", ["ippo", "impact"])
def test_gradients_of_images_are_those_of_the_same_numbers(name):
    seen = [rounds.trajectory(DISCRETE, actor) for actor in range(2)]
    found = [
        rounds.learner(name, spaces, PAIRS).gradients(rounds.inputs(PAIRS, given)).gradients
        for spaces, given in ((DISCRETE, seen), (vectors(DISCRETE), list(map(as_vectors, seen))))
    ]
    for policy, gradients in found[0].items():
        for part, array in gradients.items():
            assert array.tobytes() == found[1][policy][part].tobytes(), (policy, part)


def test_a_round_may_have_no_bootstrap_row():
    whole = rounds.trajectory(DISCRETE, 1)
    rows = {name: a[:, :0] if "/" in name else a[:0] for name, a in whole.arrays.items() if name.startswith("boot_")}
    learner = rounds.learner("ippo", DISCRETE, rounds.INDEPENDENT)
    found = learner.update(rounds.inputs(rounds.INDEPENDENT, [Trajectory({**whole.arrays, **rows})]))
    assert np.isfinite(found.metrics["a"]["policy_loss"])


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_actors_see_images_as_the_same_numbers(recurrent):
    model = rounds.MODEL.model_copy(update={"recurrent": recurrent})
    agents, env = DISCRETE.classes[0], SyntheticEnv(DISCRETE, 3)
    states = [
        rounds.learner("ippo", spaces, rounds.INDEPENDENT, model=model).state("a")
        for spaces in (DISCRETE, vectors(DISCRETE))
    ]
    bytes_, numbers = (
        ActingPolicies.from_states(each, [state] * 4)
        for each, state in zip((agents, replace(agents, image=None)), states, strict=True)
    )
    obs_NBO = env.reset(1).obs[0]
    for _ in range(3):
        ours, _ = bytes_.outputs(obs_NBO, None)
        theirs, _ = numbers.outputs(obs_NBO / np.float32(255), None)
        assert np.array_equal(ours, theirs)


def test_a_round_has_the_images_of_the_environment_and_its_learner_holds_no_copy():
    lanes = [Lane(SyntheticEnv(DISCRETE, copies)) for copies in (3, 2)]
    learner = rounds.learner("ippo", DISCRETE, rounds.INDEPENDENT)
    policies = [ActingPolicies.from_states(DISCRETE.classes[0], [learner.state(a) for a in rounds.AGENTS])]
    seen = []
    for seed, lane in enumerate(lanes):
        lane.begin(seed)
        seen.append(lane.roll(policies, steps=7, seed=seed, with_state=True)[0])
    assert {seen[0][name].dtype.name for name in ("obs/0", "boot_obs/0")} == {"uint8"}
    table = tabulate(seen, 0, False)
    arrays = [each[name] for each in seen for name in ("obs/0", "boot_obs/0")]
    assert all(np.shares_memory(part, each) for part, each in zip(table.images.parts, arrays, strict=True))
    expected = np.concatenate([as_vectors(each)["obs/0"] for each in seen], axis=2)  # [T, N, B, O]
    found = table.images.scaled(table.obs[:, :1].transpose(0, 2, 1).astype(np.int64))  # [N, S, O]
    assert np.array_equal(found, expected.swapaxes(0, 1).reshape(4, -1, 24))
    last = np.concatenate([as_vectors(each)["boot_obs/0"] for each in seen], axis=1)
    assert np.array_equal(table.images.scaled(table.boot_obs[:, :1].transpose(0, 2, 1).astype(np.int64)), last)


@pytest.mark.parametrize("layout", [NetLayout(24, (2,), 1), NetLayout(24, (2,), 1, image=IMAGE)])
def test_nets_read_pixels_in_the_place_of_positions(monkeypatch, layout):
    monkeypatch.setattr(images, "_PIECE", 2)
    seen = [rounds.trajectory(DISCRETE, 1), rounds.trajectory(DISCRETE, 2, batch=2)]
    table, reader = tabulate(seen, 0, False), ImageReader(torch.device("cpu"))
    reader.show(table.images)
    x_N3S = torch.cat([torch.from_numpy(table.obs[:, :1]), torch.full_like(torch.from_numpy(table.obs), 7.0)], dim=1)
    read = reader.read(x_N3S, layout)
    assert (read if layout.image is None else read.transpose(1, 2)).is_contiguous()
    expected = table.images.scaled(table.obs[:, :1].transpose(0, 2, 1).astype(np.int64))
    assert np.array_equal(read[:, :24], expected.transpose(0, 2, 1))
    assert (read[:, 24:] == 7).all()
    reader.show(None)
    with pytest.raises(ValueError, match="no round"):
        reader.read(x_N3S, layout)


@pytest.mark.parametrize(("frames", "channels"), [(4, 1), (2, 3), (1, 1), (3, 2), (1, 9)])
@pytest.mark.parametrize("way", ["compiled", "numpy", "device"])
def test_convolutions_are_shown_each_pixel_with_the_channels_of_all_frames(monkeypatch, frames, channels, way):
    rng = np.random.default_rng(3)
    parts = tuple(rng.integers(256, size=(rows, channels * 5 * 7), dtype=np.uint8) for rows in (4, 1, 6))
    shown, reader = RoundImages(parts, ("obs/0",), frames), ImageReader(torch.device("cpu"))
    reader.show(shown)
    if way == "numpy":
        monkeypatch.setattr(images, "library", lambda: None)
    if way == "device":
        monkeypatch.setattr(reader, "_store", torch.from_numpy(np.concatenate(parts)))
    position_PFM = rng.integers(11, size=(2, frames, 3)).astype(np.float32)
    x_PIM = torch.from_numpy(np.concatenate([position_PFM, np.ones((2, 2, 3), np.float32)], axis=1))
    found = reader.images(InputShape(channels * frames * 35 + 1, (frames * channels, 5, 7)), x_PIM)
    bytes_PFMcHW = np.concatenate(parts)[position_PFM.astype(int)].reshape(2, frames, 3, channels, 5, 7)
    expected = bytes_PFMcHW.transpose(0, 2, 4, 5, 1, 3).reshape(2, 3, 5, 7, -1) / np.float32(255)
    assert found.is_contiguous()
    assert np.array_equal(found, expected)


def test_more_images_than_can_be_numbered_are_refused(monkeypatch):
    monkeypatch.setattr(images, "_MOST", 100)
    with pytest.raises(SpecError, match=r"a round has 1\d\d images of class 0, and a learner takes 100; lower actors"):
        RoundImages.of([rounds.trajectory(DISCRETE, 1)], 0)


@pytest.mark.parametrize("wrong", [lambda obs: obs[..., :-1], lambda obs: obs.astype(np.float32)])
def test_an_image_of_another_size_or_dtype_is_refused_with_its_step(wrong):
    class Wrong(SyntheticEnv):
        def step(self, actions):
            step = super().step(actions)
            if self._steps_B.max() == 2:
                step = replace(step, frame=replace(step.frame, obs=(wrong(step.frame.obs[0]),)))
            return step

    lane = Lane(Wrong(replace(DISCRETE, deaths=False), 3))
    lane.begin(4)
    state = rounds.learner("ippo", DISCRETE, rounds.INDEPENDENT).state("a")
    policies = [ActingPolicies.from_states(DISCRETE.classes[0], [state] * 4)]
    with pytest.raises(
        SpecError, match=r"broken: before step \d walker observes .*, and its images are uint8\[4, 3, 2"
    ):
        lane.roll(policies, steps=9, seed=1, with_state=True)
