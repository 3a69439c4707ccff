"""The page on adding a net does what it says; tests/docs runs its test, and trains a job with it."""

from marless import spec
from marless.job import prepare
from marless.nets.kinds import kind_of

PAGE = "docs/extending/net.md"


def test_a_job_finds_it_by_its_entry_point(package):
    job = prepare(spec.load(package / "job.yaml"))
    assert job.spec.model.kind == "residual"
    assert type(kind_of("residual")).__name__ == "Residual"
