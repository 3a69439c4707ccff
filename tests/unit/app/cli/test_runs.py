"""What lies in a directory of run folders, read while nobody may be there to ask."""

import fcntl
import json
import os

import pytest

from marless.app.cli.recorded import Unfinished, unfinished
from marless.app.cli.train import claim_job_id
from marless.core.errors import UnavailableError


def folder(runs, name, **status):
    (runs / name).mkdir()
    (runs / name / "job.json").write_text(json.dumps(status))


def test_jobs_that_have_not_ended(tmp_path):
    folder(tmp_path, "waits", state="PENDING")
    folder(tmp_path, "runs", state="RUNNING", attached=True, cancelling=True)
    folder(tmp_path, "ended", state="SUCCEEDED")
    folder(tmp_path, "other")
    (tmp_path / ".stack").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "job.json").write_text("{")
    with (tmp_path / "runs" / "owner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert unfinished(tmp_path) == (
            Unfinished(job="runs", attached=True, cancelling=True, run_by_somebody=True),
            Unfinished(job="waits", attached=False, cancelling=False, run_by_somebody=False),
        )
    assert not any(job.run_by_somebody for job in unfinished(tmp_path))
    assert unfinished(tmp_path / "not there") == ()


def test_two_commands_in_one_second_get_two_ids(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _: "20270101-000000")
    found = [claim_job_id("tiny", tmp_path / "runs") for _ in range(3)]
    assert found == [f"tiny-20270101-000000{end}" for end in ("", "-2", "-3")]
    assert all((tmp_path / "runs" / each).is_dir() for each in found)


def test_a_directory_in_which_no_run_folder_can_be_made_is_named(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UnavailableError, match=r"no run folder can be made: .*runs"):
        claim_job_id("tiny", tmp_path / "runs")


def test_a_directory_whose_name_is_not_utf_8_is_refused(marless, tmp_path):
    """Its job ended with an internal error: messages between the services are UTF-8."""
    code, _, said = marless(
        "train", "mpe/simple", "--in-process", "--runs", os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    )
    assert code == 2
    assert "not UTF-8; give another directory" in " ".join(said.replace("│", "").split())
