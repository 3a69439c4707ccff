"""The net that `marless new` makes; tests/docs runs its page."""

from marless.jobs import spec
from marless.jobs.job import prepare
from marless.learning.nets.kinds import kind_of

KIND = "net"


def test_a_job_finds_it_by_its_entry_point(package):
    job = prepare(spec.load(package / "job.yaml"))
    assert job.spec.model.kind == "residual"
    assert type(kind_of("residual")).__name__ == "ResidualNet"
