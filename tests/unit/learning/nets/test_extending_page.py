"""The page on adding a net does what it says; `make test-slow` trains a job with it."""

import runpy

from marless.jobs import spec
from marless.jobs.job import prepare
from marless.learning.nets.kinds import kind_of

PAGE = "docs/extending/net.md"


def test_a_job_finds_it_by_its_entry_point(package):
    job = prepare(spec.load(package / "job.yaml"))
    assert job.spec.model.kind == "residual"
    assert type(kind_of("residual")).__name__ == "Residual"


def test_it_passes_the_test_that_the_page_shows(package):
    runpy.run_path(f"{package}/tests/test_residual.py")["test_it_keeps_the_contract"]()
