"""The scaling policy that `marless new` makes; tests/docs runs its page."""

from marless.jobs import spec
from marless.jobs.job import prepare
from tests.unit.jobs.scaling.rounds import actors, groups, record

KIND = "scaling"


def test_a_job_finds_it_by_its_entry_point(package):
    job = spec.load(package / "job.yaml", ["actors.count=40"])
    history = [record(number, "a", mean=mean, actors=10) for number, mean in enumerate([-3, -3, -3, -3, -2, -3, -4])]
    assert job.scaling.window == 3
    assert actors(prepare(job).scaling, history, groups("a")) == [1, 1, 1, 1, 1, 1, 5, 20]
