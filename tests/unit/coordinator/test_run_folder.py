"""The run folder: written whole or not at all, kept within bounds, and every disk error names the folder."""

import errno
import json
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from marless.core.errors import AlreadyExistsError, CorruptError, FencedError, NotFoundError, UnavailableError
from marless.jobs import spec
from marless.services.coordinator.state.ownership import Ownership, beat_of
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus, PendingRollout
from marless.storage.checkpoint import Checkpoint, CheckpointProgress, SavedPolicy
from tests.unit.jobs.test_record import RETURNS, record

SPEC = spec.parse({"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 1}}, "spec")
STATUS = JobStatus(job="j", state="RUNNING", reason="training", accepted_s=5.0, random=RETURNS)


PENDING = PendingRollout(
    round=1, actors=2, rollout_s=0.5, env_steps=7, returns=RETURNS, invocations=record().invocations
)


def taken_over(runs: Path) -> RunFolder:
    """The run folder of a job that was accepted, under its coordinator."""
    folder = RunFolder(runs / "j")
    folder.create(SPEC, STATUS)
    folder.take_over()
    return folder


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return taken_over(tmp_path / "runs")


def saved(round_: int) -> Checkpoint:
    progress = CheckpointProgress(round=round_, env_steps=7, seed=3, actors=2, groups={"p": ("a", "b")})
    policy = SavedPolicy(version=round_ + 1, blobs={"acting": b"a%d" % round_, "learning": memoryview(b"l%d" % round_)})
    return Checkpoint(progress=progress, policies={"p": policy})


@pytest.fixture
def synced(monkeypatch) -> list[Path]:
    """What is fsynced, in turn."""
    paths, real = [], os.fsync

    def fsync(descriptor: int) -> None:
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_the_name_of_a_new_folder_is_on_the_disk_before_it_holds_a_job(tmp_path, synced):
    RunFolder(tmp_path / "new" / "runs" / "j").create(SPEC, STATUS)
    above = [tmp_path / "new" / "runs", tmp_path / "new", tmp_path]
    assert synced[:3] == above
    RunFolder(tmp_path / "new" / "runs" / "k").create(SPEC, STATUS)
    assert [synced.count(path) for path in above] == [2, 1, 1]


def test_the_name_of_the_directory_of_checkpoints_is_on_the_disk_once_there_is_one(folder, synced):
    for round_ in (1, 2):
        folder.save_checkpoint(saved(round_), 3)
    assert [synced.count(path) for path in (folder.path, folder.path / "checkpoints")] == [1, 2]


def test_the_resolved_spec_is_there_from_the_start(folder):
    text = (folder.path / "spec.yaml").read_text()
    assert spec.parse(yaml.safe_load(text), "spec.yaml") == SPEC
    assert "gae_lambda: 0.95" in text  # every default is written out


def test_what_was_written_is_read_back(folder):
    folder.write_pending([PENDING])
    folder.sync_pending()
    later = RunFolder(folder.path)
    assert later.load() == (SPEC, STATUS)
    assert later.read_pending(1) == (PENDING,)
    assert later.read_pending(2) == ()  # of another round
    folder.drop_pending()
    assert later.read_pending(1) == ()


def test_files_of_other_versions_are_read_for_what_they_have(folder):
    path = folder.path / "job.json"
    path.write_text(json.dumps({"job": "j", "state": "FAILED", "reason": "r", "accepted_s": 1, "weather": "fine"}))
    assert folder.load()[1] == JobStatus(job="j", state="FAILED", reason="r", accepted_s=1.0)


@pytest.mark.parametrize(
    ("name", "content"), [("job.json", b""), ("job.json", b"[]"), ("spec.yaml", b"{"), ("spec.yaml", b"a: 1")]
)
def test_a_damaged_file_is_named(folder, name, content):
    (folder.path / name).write_bytes(content)
    with pytest.raises(CorruptError, match=rf"/runs/j.*{name}" if name == "job.json" else "/runs/j"):
        folder.load()


def test_a_missing_job_is_not_found(folder, tmp_path):
    with pytest.raises(NotFoundError):
        RunFolder(tmp_path / "none").load()
    with pytest.raises(NotFoundError):
        RunFolder(tmp_path / "none").own()
    (folder.path / "spec.yaml").unlink()
    with pytest.raises(NotFoundError, match=r"spec\.yaml is missing"):
        folder.load()


def test_the_newest_rollout_replaces_a_longer_one_whole(folder):
    folder.write_pending([PENDING])
    shorter = PendingRollout(round=2, actors=2, rollout_s=0.5, env_steps=7, returns=None, invocations=())
    folder.write_pending([shorter])
    assert folder.read_pending(2) == (shorter,)
    folder.take_over()
    assert folder.read_pending(2) == (shorter,)


def test_a_rollout_noted_too_late_goes_to_a_file_without_a_name(folder):
    late = folder._pending
    folder.write_pending([PENDING])
    folder.take_over()
    os.pwrite(late.fileno(), b"late", 0)
    assert folder.read_pending(1) == (PENDING,)


def test_a_pending_file_that_was_not_finished_is_none(folder):
    (folder.path / "pending.json").write_bytes(b'{"round": 1')
    assert folder.read_pending(1) == ()


def test_rollouts_count_from_the_round_that_is_next_to_the_first_gap_or_torn_line(folder):
    rollouts = [replace(PENDING, round=number) for number in (1, 2, 4)]
    folder.write_pending(rollouts)
    assert folder.read_pending(1) == tuple(rollouts[:2])
    assert folder.read_pending(2) == (rollouts[1],)
    assert folder.read_pending(3) == ()
    path = folder.path / "pending.json"
    path.write_bytes(path.read_bytes().replace(b'"round":2', b'"round":'))
    assert folder.read_pending(1) == (rollouts[0],)


def test_a_folder_in_which_a_job_is_or_has_run_is_taken(folder):
    for _ in range(2):
        with pytest.raises(AlreadyExistsError, match="contains a job already; choose another job id"):
            RunFolder(folder.path).create(SPEC, STATUS)
        folder.release()


def test_a_job_whose_acceptance_was_interrupted_can_be_accepted_again(folder):
    (folder.path / "job.json").unlink()
    folder.release()
    again = RunFolder(folder.path)
    again.create(SPEC, STATUS)
    assert again.load() == (SPEC, STATUS)


def test_a_job_starts_from_a_copy(folder, tmp_path):
    folder.save_checkpoint(saved(1), keep=1)
    started = RunFolder(tmp_path / "runs" / "k")
    started.create(SPEC, STATUS, folder.checkpoints.path(1))
    assert {path.name for path in started.start_path.iterdir()} == {
        *("manifest.json", "p.acting.safetensors", "p.learning.safetensors"),
    }


@pytest.mark.parametrize(
    "write",
    [
        lambda folder: folder.write_status(STATUS),
        lambda folder: folder.write_spec(SPEC),
        lambda folder: folder.write_pending([PENDING]),
        lambda folder: folder.append(record()),
        lambda folder: folder.cut(0),
        lambda folder: folder.take_over(),
        lambda folder: folder.save_checkpoint(saved(1), 1),
        lambda folder: folder.drop_pending(),
        lambda folder: folder.delete(),
    ],
)
def test_who_does_not_own_the_folder_writes_nothing(folder, write):
    stranger = RunFolder(folder.path)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    with pytest.raises(FencedError, match=r"another coordinator has taken .*/runs/j over"):
        write(stranger)
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


def test_status_is_replaced_whole(folder, monkeypatch):
    folder.write_status(STATUS)
    assert json.loads((folder.path / "job.json").read_text())["random"]["mean"] == -20.5

    def crash(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", crash)
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
        lambda: folder.save_checkpoint(saved(1), 3),
        folder.take_over,
    ):
        with pytest.raises(UnavailableError, match=r"run folder .*/runs/j: No space left on device; make room"):
            write()
    assert folder.checkpoints.rounds() == ()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(UnavailableError, match=r"run folder .*/runs/j: Not a directory"):
        RunFolder(tmp_path / "runs" / "j").create(SPEC, STATUS)


def test_a_round_is_saved_once(folder):
    folder.save_checkpoint(saved(1), keep=1)
    before = folder.checkpoints.path(1).stat().st_ino
    folder.save_checkpoint(saved(1), keep=1)
    assert folder.checkpoints.path(1).stat().st_ino == before


def test_a_torn_line_goes_when_the_folder_is_taken_over(folder):
    for number in range(3):
        folder.append(record(number))
    whole = (folder.path / "rounds.jsonl").read_bytes()
    for torn in range(1, len(whole) // 3, 97):
        folder.release()
        (folder.path / "rounds.jsonl").write_bytes(whole[:-torn])
        assert folder.own()
        folder.take_over()
        assert list(folder.records()) == [record(0), record(1)]
        folder.append(record(2))
        assert (folder.path / "rounds.jsonl").read_bytes() == whole


def test_a_file_without_any_whole_line_is_emptied(folder):
    (folder.path / "rounds.jsonl").write_bytes(b"x" * 200_000)
    folder.take_over()
    assert (folder.path / "rounds.jsonl").read_bytes() == b""


@pytest.mark.parametrize("step", ["write_text", "replace"])
def test_what_an_earlier_owner_writes_late_goes_nowhere(folder, step):
    """Its line to a file that has no name any more; its status to none, in whichever step it was overtaken."""
    folder.append(record(0))
    late, real = folder._rounds, getattr(Path, step)
    second = RunFolder(folder.path)

    def overtaken(path: Path, *arguments: object, **options: object) -> object:
        second.ownership = Ownership.seize(folder.path, beat_of(folder.path))
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Path, step, real)
            second.take_over()
        return real(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, step, overtaken)
        with pytest.raises(FencedError):
            folder.write_status(JobStatus(job="j", state="FAILED", reason="late", accepted_s=5.0))
    late.write(b"a late line\n")
    assert second.load()[1] == STATUS
    assert list(second.records()) == [record(0)]
    second.append(record(1))
    assert list(second.records()) == [record(0), record(1)]
    assert not list(folder.path.glob("*.partial"))


def test_what_is_cut_is_gone_for_good(folder):
    for number in range(4):
        folder.append(record(number))
    for round_ in (2, 4):
        folder.save_checkpoint(saved(round_), keep=3)
    folder.cut(2)
    assert folder.checkpoints.rounds() == (2,)
    assert list(RunFolder(folder.path).records()) == [record(0), record(1)]
    folder.append(record(2))
    assert list(folder.records()) == [record(0), record(1), record(2)]
    folder.cut(0)
    assert list(folder.records()) == []


def test_a_deleted_folder_is_gone(folder):
    folder.save_checkpoint(saved(1), keep=1)
    folder.delete()
    assert list(folder.path.parent.iterdir()) == []
