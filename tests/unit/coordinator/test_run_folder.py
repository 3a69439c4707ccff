"""The run folder: written whole or not at all, kept within bounds, and every disk error names the folder."""

import errno
import json
import os
import resource
from pathlib import Path

import pytest
import yaml

from marless import spec
from marless.errors import AlreadyExistsError, UnavailableError
from services.coordinator import run_folder
from services.coordinator.run_folder import Checkpoint, JobStatus, RunFolder
from tests.unit.test_record import RETURNS, record

SPEC = spec.parse({"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 1}}, "spec")
STATUS = JobStatus(job="j", state="RUNNING", reason="training", accepted_s=5.0, random=RETURNS)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "j")
    folder.create(SPEC)
    return folder


def saved(version: int) -> dict[str, Checkpoint]:
    return {"p": Checkpoint(version, {"acting": b"a%d" % version, "learning": memoryview(b"l%d" % version)})}


def rounds(folder: RunFolder) -> list[str]:
    return sorted(path.name for path in (folder.path / "checkpoints").iterdir())


def test_the_resolved_spec_is_there_from_the_start(folder):
    text = (folder.path / "spec.yaml").read_text()
    assert spec.parse(yaml.safe_load(text), "spec.yaml") == SPEC
    assert "gae_lambda: 0.95" in text  # every default is written out


def test_a_folder_in_which_a_job_has_run_is_taken(folder):
    folder.create(SPEC)  # accepted, then the coordinator died: nothing has run
    folder.write_status(STATUS)
    with pytest.raises(AlreadyExistsError, match="holds a job already; choose another job id"):
        folder.create(SPEC)


def test_status_is_replaced_whole(folder, monkeypatch):
    folder.write_status(STATUS)
    assert json.loads((folder.path / "job.json").read_text())["random"]["mean"] == -20.5

    def crash(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        folder.write_status(JobStatus(job="j", state="FAILED", reason="", accepted_s=5.0))
    assert json.loads((folder.path / "job.json").read_text())["state"] == "RUNNING"


def test_records_are_read_back_in_order(folder):
    for number in range(3):
        folder.append(record(number))
    assert list(folder.records()) == [record(0), record(1), record(2)]
    assert list(folder.records(2)) == [record(2)]


def test_a_record_is_on_the_disk_before_it_is_acknowledged(folder, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    folder.append(record())
    assert synced == [len(record().to_json()) + 1]


def test_a_record_that_does_not_fit_is_taken_back_whole(folder):
    folder.append(record(0))
    size = (folder.path / "rounds.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))  # the kernel writes 100 bytes, then no more
    try:
        with pytest.raises(UnavailableError, match=r"run folder .*/runs/j: .*; make room or choose another"):
            folder.append(record(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(folder.records()) == [record(0)]
    folder.append(record(1))  # there is room again
    assert list(folder.records()) == [record(0), record(1)]


def test_every_disk_error_names_the_folder(folder, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for write in (
        lambda: folder.write_status(STATUS),
        lambda: folder.save_checkpoint(1, saved(1), 3),
        lambda: folder.create(SPEC),
    ):
        with pytest.raises(UnavailableError, match=r"run folder .*/runs/j: No space left on device; make room"):
            write()
    assert list((folder.path / "checkpoints").glob("round-??????")) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(UnavailableError, match=r"run folder .*/runs/j: Not a directory"):
        RunFolder(tmp_path / "runs" / "j").create(SPEC)


def test_a_checkpoint_holds_every_part_and_a_manifest(folder):
    target = folder.save_checkpoint(7, saved(8), keep=1)
    assert target.name == "round-000007"
    assert json.loads((target / "manifest.json").read_text()) == {
        "round": 7,
        "policies": {"p": {"version": 8, "parts": ["acting", "learning"]}},
    }
    assert (target / "p.acting.safetensors").read_bytes() == b"a8"
    assert (target / "p.learning.safetensors").read_bytes() == b"l8"


def test_the_newest_checkpoints_are_kept_also_beyond_a_million_rounds(folder):
    for number in (1, 2, 999_999, 1_000_000, 1_000_001):
        folder.save_checkpoint(number, saved(number), keep=2)
    assert rounds(folder) == ["round-1000000", "round-1000001"]


def test_saving_a_round_again_replaces_it(folder):
    folder.save_checkpoint(1, saved(1), keep=2)
    target = folder.save_checkpoint(1, saved(9), keep=2)
    assert (target / "p.acting.safetensors").read_bytes() == b"a9"
    assert rounds(folder) == ["round-000001"]


def test_a_crash_in_mid_checkpoint_leaves_the_older_one_and_no_half(folder, monkeypatch):
    folder.save_checkpoint(1, saved(1), keep=1)
    real = run_folder._write

    def crash(path: Path, data: bytes) -> None:
        if path.name == "manifest.json":
            raise KeyboardInterrupt
        real(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "_write", crash)
        with pytest.raises(KeyboardInterrupt):
            folder.save_checkpoint(2, saved(2), keep=1)
    assert rounds(folder) == ["round-000001", "round-000002.partial"]
    folder.save_checkpoint(3, saved(3), keep=1)
    assert rounds(folder) == ["round-000003"]
