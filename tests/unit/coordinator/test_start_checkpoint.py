"""`start.checkpoint`: what it may name, and a sentence for what it may not."""

import json
from pathlib import Path

import numpy as np
import pytest

from marless.core.errors import NotFoundError, SpecError
from marless.core.group import Group
from marless.core.state import REPLAY, PolicyState
from marless.jobs.job import prepare
from marless.jobs.spec import parse
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext
from marless.learning.nets import serial
from marless.services.coordinator.state.checkpoints import find_start, load_start, start_checkpoint
from marless.services.coordinator.state.uploads import FileUploads
from marless.storage.checkpoint import PARTS, Checkpoint, CheckpointProgress, DiskCheckpoints, SavedPolicy
from tests.unit.coordinator.test_run_folder import SPEC

NAMES = ("agent_0", "agent_1")


@pytest.fixture
def runs(tmp_path) -> Path:
    """A directory of run folders: `done` has two checkpoints, `new` has none."""
    checkpoints = DiskCheckpoints(tmp_path / "done" / "checkpoints")
    for round_ in (1, 12):
        progress = CheckpointProgress(
            round=round_, env_steps=7, seed=3, actors=2, groups={name: (name,) for name in NAMES}
        )
        policies = {name: SavedPolicy(version=2, blobs={"acting": b"a"}) for name in NAMES}
        checkpoints.save(Checkpoint(progress=progress, policies=policies), keep=2)
    (tmp_path / "new").mkdir()
    return tmp_path


@pytest.fixture
def find(runs):
    return lambda reference: find_start(reference, runs, FileUploads(runs, 2**20))


def test_of_a_job_it_is_the_newest_checkpoint(runs, find):
    assert find("done") == runs / "done" / "checkpoints" / "round-000012"


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("none", "there is no job 'none' here, or it has no checkpoint yet; the path of .* slash in it: ./none"),
        ("new", "there is no job 'new' here, or it has no checkpoint yet"),
        ("/nowhere/at/all", "'/nowhere/at/all' is no job id; .* a coordinator opens no path"),
        ("./done", "'./done' is no job id"),
        ("done/checkpoints/round-000012", "'done/checkpoints/round-000012' is no job id"),
        ("..", "'..' is no job id"),
        (".uploads", "'.uploads' is no job id"),
        ("done\n", r"'done\\n' is no job id"),
    ],
)
def test_what_is_not_there_is_said_by_name(find, reference, sentence):
    with pytest.raises(SpecError, match=f"^start.checkpoint: .*{sentence}"):
        find(reference)


@pytest.mark.parametrize("reference", ["upload:", "upload:../done", f"upload:{'0' * 64}", f"upload:{'0' * 64}\n"])
def test_an_upload_that_is_not_there_is_to_be_sent(find, reference):
    with pytest.raises(NotFoundError, match=r"^start.checkpoint: the upload does not exist"):
        find(reference)


def test_a_link_in_the_place_of_a_job_is_refused(runs, find, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (runs / "done").rename(elsewhere / "done")
    (runs / "done").symlink_to(elsewhere / "done")
    with pytest.raises(SpecError, match=r"^start.checkpoint: job 'done' is a link"):
        find("done")


@pytest.mark.parametrize(
    ("name", "damage"),
    [("manifest.json", b"{}"), ("agent_0.acting.safetensors", b"b"), ("agent_1.acting.safetensors", None)],
)
def test_a_damaged_checkpoint_is_refused(runs, find, name, damage):
    path = runs / "done" / "checkpoints" / "round-000012" / name
    if damage:
        path.write_bytes(damage)
    else:
        path.unlink()
    with pytest.raises(SpecError, match=rf"^start.checkpoint: .*{name}"):
        find("done")


def test_policies_of_other_names_are_refused(find):
    newest = find("done")
    with pytest.raises(SpecError, match=r"start.checkpoint holds no policy agent_2; it has agent_0, agent_1: give"):
        load_start(newest, prepare(SPEC))


def written(runs: Path, algorithm: str, *joint: tuple[str, PolicyState]) -> Path:
    """A checkpoint of three agents that an algorithm trained, and of joint states."""
    agents = tuple(f"agent_{i}" for i in range(3))
    acting = {"policy.0.weight": np.zeros((1, 1), np.float32)}
    states = {name: PolicyState(acting, {}, {}) for name in agents} | dict(joint)
    saved = {
        name: SavedPolicy(version=2, blobs=dict(zip(PARTS, serial.encode(state), strict=True)))
        for name, state in states.items()
    }
    groups = {name: (name,) for name in agents}
    progress = CheckpointProgress(round=1, env_steps=7, seed=3, actors=2, algorithm=algorithm, groups=groups)
    checkpoints = DiskCheckpoints(runs / "other" / "checkpoints")
    checkpoints.save(Checkpoint(progress=progress, policies=saved), keep=1)
    return checkpoints.path(1)


@pytest.mark.parametrize("algorithm", ["iddpg", "maddpg", "forgotten"])
def test_policies_of_another_family_are_refused(runs, algorithm):
    with pytest.raises(SpecError) as refused:
        load_start(written(runs, algorithm), prepare(SPEC))
    assert str(refused.value) == (
        f"start.checkpoint holds policies that {algorithm} trained, and ippo cannot go on with them: their "
        f"outputs mean other things; set algorithm.name: {algorithm}, or leave start.checkpoint out"
    )


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", ""])
def test_policies_of_its_family_are_what_a_job_may_start_from(runs, algorithm):
    """Also of a checkpoint that does not say what trained it."""
    assert load_start(written(runs, algorithm), prepare(SPEC)).progress.algorithm == algorithm


def test_joint_nets_are_started_from_and_what_was_remembered_is_not(runs):
    nothing: dict[str, np.ndarray] = {"x": np.zeros(1, np.float32)}
    critic, replay = PolicyState({}, nothing, {"kind": "mlp"}), PolicyState({}, nothing, {"kind": REPLAY})
    found = load_start(written(runs, "ippo", ("critic.x", critic), ("replay.x", replay)), prepare(SPEC))
    assert found.policies.keys() == {"agent_0", "agent_1", "agent_2", "critic.x"}


NETS = {"hidden": [8, 6], "activation": "tanh"}


@pytest.mark.parametrize(
    ("algorithm", "model", "theirs", "ours"),
    [
        ("ippo", {"hidden": [8]}, "hidden [8, 6]", "hidden [8]"),
        ("iql", {"hidden": [6, 8]}, "hidden [8, 6]", "hidden [6, 8]"),
        ("ippo", {"activation": "relu"}, "activation tanh", "activation relu"),
        ("ippo", {"recurrent": "gru", "hidden": [8]}, "net mlp, hidden [8, 6]", "net gru, hidden [8]"),
        (
            "ippo",
            {"normalise_observations": True, "observation_clip": None},
            "normalise_observations False",
            "normalise_observations True",
        ),
        ("ippo", {"observation_clip": 3.0}, "", ""),
        ("ippo", {}, "", ""),
        ("iql", {}, "", ""),
    ],
)
def test_nets_that_a_job_does_not_have_are_refused_when_it_is_submitted(runs, algorithm, model, theirs, ours):
    def job(changes):
        given = {"algorithm": algorithm, "model": NETS | changes, "start": {"checkpoint": "other"}}
        return prepare(parse(json.loads(SPEC.to_json()) | given, "spec"))

    wrote = job({})
    learner = learner_of(wrote)
    names = [f"agent_{i}" for i in range(3)]
    learner.names([Group(name, (name,)) for name in names])
    written(runs, algorithm, *((name, learner.initial(name, 1)) for name in names))
    uploads = FileUploads(runs, 2**20)
    if not theirs:
        assert start_checkpoint(job(model), "new", runs, uploads) is not None
        return
    with pytest.raises(SpecError) as refused:
        start_checkpoint(job(model), "new", runs, uploads)
    assert str(refused.value) == (
        f"start.checkpoint: agent_0 has a model with {theirs}, this job one with {ours}; give this job "
        "the model of the job that wrote the checkpoint, or leave start.checkpoint out"
    )


def learner_of(job):
    algorithm = registry.algorithm(job.spec.algorithm.name)
    (scope,) = scopes(algorithm, job.spec.algorithm, job.spaces)
    return algorithm.learner(job.spec.algorithm, LearnerContext(job.spec.nets, job.spaces, scope, "cpu", None, False))
