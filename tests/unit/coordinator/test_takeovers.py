"""A job of which one coordinator after another dies is failed, so that it cannot take all jobs down for ever."""

import asyncio
from dataclasses import replace
from unittest.mock import MagicMock

import pytest

from marless.jobs.spec import parse
from marless.services.coordinator.jobs import job_queue
from marless.services.coordinator.jobs import jobs as jobs_module
from marless.services.coordinator.jobs.jobs import MOST_TAKEOVERS, Jobs, JobsOptions
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus

DOCUMENT = {"env": {"name": "game/matrix"}, "algorithm": "ippo", "stop": {"rounds": 3}}
STATUS = JobStatus(job="j", state="RUNNING", reason="runs", accepted_s=1.0)


@pytest.mark.parametrize(
    ("takeovers", "at", "rounds", "after"),
    [(0, 0, 0, (1, 0)), (3, 0, 0, (4, 0)), (3, 0, 1, (1, 1)), (0, 2, 2, (1, 2)), (9, 4, 5, (1, 5))],
)
def test_takeovers_in_a_row_without_a_round_are_counted(takeovers, at, rounds, after):
    status = replace(STATUS, takeovers=takeovers, takeovers_at=at).taken_over(rounds)
    assert (status.takeovers, status.takeovers_at) == after


def folder_with(path, status):
    folder = RunFolder(path / status.job)
    folder.create(parse(DOCUMENT, "job"), status, None)
    folder.flush()
    folder.release()
    return RunFolder(path / status.job)


async def until(reached):
    async with asyncio.timeout(20):
        while not reached():  # noqa: ASYNC110  # another task writes a file
            await asyncio.sleep(0.01)


async def test_a_job_that_ended_too_many_coordinators_is_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs_module.Preparing, "prepared", None)  # it is not touched any more
    folder = folder_with(tmp_path, replace(STATUS, takeovers=MOST_TAKEOVERS))
    async with Jobs(tmp_path, None, JobsOptions(lease_s=0.2)) as jobs:
        await until(lambda: folder.read_status().ended)
        status = folder.read_status()
        assert status.state == "FAILED"
        assert status.reason.startswith(f"{MOST_TAKEOVERS} coordinators in a row ended while they ran it")
        assert jobs.live("j") is None
    assert replace(status, summary_json="").resumed("again", reason="starts", attached=False).takeovers == 0


async def test_the_count_is_on_the_disk_before_the_job_is_touched_and_gone_after_a_stop(tmp_path, monkeypatch):
    seen, honest = [], jobs_module.Preparing.prepared
    folder = folder_with(tmp_path, replace(STATUS, takeovers=2))

    async def prepared(self, spec, **given):
        seen.append(folder.read_status().takeovers)
        return await honest(self, spec, **given)

    monkeypatch.setattr(jobs_module.Preparing, "prepared", prepared)
    monkeypatch.setattr(jobs_module.JobQueue, "_fill", lambda self: None)  # its turn never comes
    async with Jobs(tmp_path, MagicMock(), JobsOptions(lease_s=0.2)) as jobs:
        await until(lambda: jobs.live("j") is not None)
        assert seen == [3]
    assert folder.read_status().takeovers == 0
    assert not folder.read_status().ended


class Running:
    """A run that goes on until it is cancelled, and releases its folder as `JobRun` does."""

    def __init__(self, folder, status, **_rest):
        self.folder, self.status, self.detail, self.runs = folder, status, "", False

    async def run(self):
        self.runs = True
        try:
            await asyncio.Event().wait()
        finally:
            self.folder.release()


@pytest.mark.parametrize("begun", [True, False])
async def test_a_coordinator_that_stops_by_itself_does_not_count_for_the_job_that_it_runs(tmp_path, monkeypatch, begun):
    """Ten restarts within one long round failed the job before."""
    folder, fill, taken = folder_with(tmp_path, STATUS), job_queue.JobQueue._fill, asyncio.Event()

    def noticed(queue):
        fill(queue)
        taken.set()

    monkeypatch.setattr(job_queue, "JobRun", Running)
    monkeypatch.setattr(job_queue.JobQueue, "_fill", noticed)
    async with Jobs(tmp_path, MagicMock(), JobsOptions(lease_s=0.2)) as jobs:
        await taken.wait()
        if begun:
            await until(lambda: jobs.live("j").job_run.runs)
        assert folder.read_status().takeovers == 1
    assert folder.read_status().takeovers == 0
    assert RunFolder(tmp_path / "j").own()
