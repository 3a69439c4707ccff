"""The index of a runs directory: what it reads, in which order it lists, and what it makes of rubbish."""

import json
from dataclasses import asdict

import pytest

from marless.core.errors import UnavailableError
from marless.services.coordinator.state.run_folder import DELETED, RunFolder
from marless.services.coordinator.state.runs import Index, Runs
from marless.services.coordinator.state.status import JobStatus


def write(runs, job: str, state: str, accepted_s: float) -> None:
    (runs / job).mkdir(exist_ok=True)
    status = JobStatus(job=job, state=state, reason="", accepted_s=accepted_s)
    (runs / job / "job.json").write_text(json.dumps(asdict(status)))


@pytest.fixture
def index(tmp_path):
    return Index(Runs(tmp_path))


async def look(index: Index, *ours: str) -> list[str]:
    return [status.job for status in await index.look(lambda job: job in ours)]


async def test_jobs_that_ended_are_read_once_and_the_others_each_time(index, tmp_path, monkeypatch):
    reads: list[str] = []
    read = RunFolder.read_status
    monkeypatch.setattr(RunFolder, "read_status", lambda folder: reads.append(folder.path.name) or read(folder))
    write(tmp_path, "old", "SUCCEEDED", 1.0)
    write(tmp_path, "new", "RUNNING", 3.0)
    write(tmp_path, "waits", "PENDING", 2.0)
    assert await look(index) == ["waits", "new"]
    assert sorted(reads) == ["new", "old", "waits"]
    write(tmp_path, "new", "FAILED", 3.0)
    assert await look(index) == ["waits"]
    assert sorted(reads[3:]) == ["new", "waits"]
    assert await look(index) == ["waits"]
    assert reads[5:] == ["waits"]
    assert index.page(0, "", ()) == (["new", "waits", "old"], "")
    assert index.page(0, "", {"FAILED", "SUCCEEDED"}) == (["new", "old"], "")


async def test_what_is_ours_is_not_looked_up(index, tmp_path):
    """The disk may not have what we know."""
    write(tmp_path, "ours", "RUNNING", 1.0)
    index.note(JobStatus(job="ours", state="FAILED", reason="", accepted_s=1.0))
    index.note(JobStatus(job="unwritten", state="PENDING", reason="", accepted_s=2.0))
    assert await look(index, "ours", "unwritten") == []
    assert index.page(0, "", {"FAILED"}) == (["ours"], "")
    assert index.page(0, "", ()) == (["unwritten", "ours"], "")
    assert await look(index) == []
    assert index.page(0, "", ()) == (["ours"], "")  # what nobody has does not exist


async def test_rubbish_is_passed_over(index, tmp_path):
    write(tmp_path, "job", "RUNNING", 1.0)
    write(tmp_path, "Not-an-id", "RUNNING", 1.0)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "job.json").write_text('{"job": "to')
    (tmp_path / f"{DELETED}job.1234").mkdir()
    assert await look(index) == ["job"]
    assert index.page(0, "", ()) == (["job"], "")
    index.clear_away()
    assert not (tmp_path / f"{DELETED}job.1234").exists()


async def test_a_directory_that_cannot_be_had_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    index = Index(Runs(tmp_path / "file"))
    with pytest.raises(UnavailableError, match=r"the runs directory .*/file cannot be made: File exists"):
        index.prepare()
    with pytest.raises(UnavailableError, match=r"the runs directory .*/file cannot be read: Not a directory"):
        await look(index)
