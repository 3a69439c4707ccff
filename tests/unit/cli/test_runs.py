"""What lies in a directory of run folders, read while nobody may be there to ask."""

import fcntl
import json

from marless.cli.runs import Unfinished, unfinished


def folder(runs, name, **status):
    (runs / name).mkdir()
    (runs / name / "job.json").write_text(json.dumps(status))


def test_jobs_that_have_not_ended(tmp_path):
    folder(tmp_path, "waits", state="PENDING")
    folder(tmp_path, "runs", state="RUNNING", attached=True)
    folder(tmp_path, "ended", state="SUCCEEDED")
    folder(tmp_path, "other")
    (tmp_path / ".stack").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "job.json").write_text("{")
    with (tmp_path / "runs" / "owner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert unfinished(tmp_path) == (
            Unfinished(job="runs", attached=True, run_by_somebody=True),
            Unfinished(job="waits", attached=False, run_by_somebody=False),
        )
    assert not any(job.run_by_somebody for job in unfinished(tmp_path))
    assert unfinished(tmp_path / "not there") == ()
