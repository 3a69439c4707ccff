"""`start.checkpoint`: what it may name, and a sentence for what it may not."""

from pathlib import Path

import numpy as np
import pytest

from marless.algos.base import REPLAY, PolicyState
from marless.checkpoint import PARTS, Checkpoint, DiskCheckpoints, Progress, SavedPolicy
from marless.errors import SpecError
from marless.job import prepare
from marless.nets import serial
from services.coordinator import start
from tests.unit.coordinator.test_run_folder import SPEC

NAMES = ("agent_0", "agent_1")


@pytest.fixture
def runs(tmp_path) -> Path:
    """A directory of run folders: `done` has two checkpoints, `new` has none."""
    checkpoints = DiskCheckpoints(tmp_path / "done" / "checkpoints")
    for round_ in (1, 12):
        progress = Progress(round=round_, env_steps=7, seed=3, actors=2, groups={name: (name,) for name in NAMES})
        policies = {name: SavedPolicy(version=2, blobs={"acting": b"a"}) for name in NAMES}
        checkpoints.save(Checkpoint(progress=progress, policies=policies), keep=2)
    (tmp_path / "new").mkdir()
    return tmp_path


def test_a_job_its_folder_and_a_checkpoint_can_be_named(runs):
    newest = runs / "done" / "checkpoints" / "round-000012"
    assert start.find("done", runs) == newest
    assert start.find(str(runs / "done"), runs) == newest
    assert start.find(str(newest.with_name("round-000001")), runs) == newest.with_name("round-000001")


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("none", "'none' is neither a job in .* nor a directory on the coordinator's machine"),
        ("/nowhere/at/all", "'/nowhere/at/all' is neither a job"),
        ("new", "new holds no checkpoint; give one, or the folder of a job with one"),
    ],
)
def test_what_is_not_there_is_said_by_name(runs, reference, sentence):
    with pytest.raises(SpecError, match=f"^start.checkpoint: .*{sentence}"):
        start.find(reference, runs)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("manifest.json", b"{}"), ("agent_0.acting.safetensors", b"b"), ("agent_1.acting.safetensors", None)],
)
def test_a_damaged_checkpoint_is_refused(runs, name, damage):
    path = runs / "done" / "checkpoints" / "round-000012" / name
    path.write_bytes(damage) if damage else path.unlink()
    with pytest.raises(SpecError, match=rf"^start.checkpoint: .*{name}"):
        start.find("done", runs)


def test_policies_of_other_names_are_refused(runs):
    newest = start.find("done", runs)
    with pytest.raises(SpecError, match=r"start.checkpoint holds no policy agent_2; it has agent_0, agent_1: give"):
        start.load(newest, prepare(SPEC))


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
    progress = Progress(round=1, env_steps=7, seed=3, actors=2, algorithm=algorithm, groups=groups)
    checkpoints = DiskCheckpoints(runs / "other" / "checkpoints")
    checkpoints.save(Checkpoint(progress=progress, policies=saved), keep=1)
    return start.find("other", runs)


@pytest.mark.parametrize("algorithm", ["iddpg", "maddpg", "forgotten"])
def test_policies_of_another_family_are_refused(runs, algorithm):
    with pytest.raises(SpecError) as refused:
        start.load(written(runs, algorithm), prepare(SPEC))
    assert str(refused.value) == (
        f"start.checkpoint holds policies that {algorithm} trained, and ippo cannot go on with them: their "
        f"outputs mean other things; set algorithm.name: {algorithm}, or leave start.checkpoint out"
    )


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", ""])
def test_policies_of_its_family_are_what_a_job_may_start_from(runs, algorithm):
    """Also of a checkpoint that does not say what trained it."""
    assert start.load(written(runs, algorithm), prepare(SPEC)).progress.algorithm == algorithm


def test_joint_nets_are_started_from_and_what_was_remembered_is_not(runs):
    nothing: dict[str, np.ndarray] = {"x": np.zeros(1, np.float32)}
    critic, replay = PolicyState({}, nothing, {"kind": "mlp"}), PolicyState({}, nothing, {"kind": REPLAY})
    found = start.load(written(runs, "ippo", ("critic.x", critic), ("replay.x", replay)), prepare(SPEC))
    assert found.policies.keys() == {"agent_0", "agent_1", "agent_2", "critic.x"}
