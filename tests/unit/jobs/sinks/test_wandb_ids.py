"""The id of a W&B run belongs to a run folder, not to a job id."""

import re

from marless.jobs.sinks.contract import sample_round
from marless.jobs.sinks.wandb import run_id
from tests.unit.jobs.sinks.test_trackers import job


def test_each_run_folder_has_one_of_its_own(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    first, other = run_id(job(here)), run_id(job(there))
    assert first != other
    assert re.fullmatch("job-7-[0-9a-f]{8}", first)
    assert run_id(job(here)) == run_id(job(here, last=sample_round(3, 1.0))) == first
