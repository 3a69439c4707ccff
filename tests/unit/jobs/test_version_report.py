"""What is said of an asynchronous run: sums and means of its versions, by hand."""

from dataclasses import replace

import pytest

from marless.jobs.asynchronous_run import busy, unused, version_report
from marless.jobs.record import AggregationRecord, GradientRecord, from_json
from marless.jobs.sinks.base import scalars
from tests.unit.cost.billing.rounds import invocation
from tests.unit.jobs.test_record import record


def gradient(learner: int, staleness: int, weight: float, waited_s: float) -> GradientRecord:
    return GradientRecord(
        learner=learner,
        rollouts=(learner, learner + 1),
        env_steps=10,
        staleness=staleness,
        weight=weight,
        waited_s=waited_s,
    )


def version(*gradients: GradientRecord, because: str = "rule", **counts: int) -> AggregationRecord:
    told = {"sampling": 2, "waiting": 1, "learning": 3, "dropped": 0, "lost": 0, "refused": 0} | counts
    return AggregationRecord(arrivals="r0:10 g0", gradients=gradients, because=because, bound=1.5, **told)


RUN = (
    record(0, aggregation=version(gradient(0, 0, 1.0, 0.1), gradient(1, 3, 0.5, 0.3))),
    record(1, aggregation=version(gradient(2, 3, 0.6, 0.2), because="escape", dropped=4, lost=5, refused=6)),
)


def test_a_run_is_summed_up():
    found = version_report(RUN)
    assert found is not None
    assert (found.versions, found.gradients, found.stalest) == (2, 3, 3)
    assert (found.staleness, found.weight) == (pytest.approx(2.0), pytest.approx(0.7))
    assert found.waited_s == pytest.approx(0.2)
    assert found.because == {"rule": 1, "escape": 1}
    assert (found.dropped, found.lost, found.refused) == (4, 5, 6)
    assert "2 versions (1 by escape, 1 by rule) from 3 gradients; staleness 2.00 on average, 3 at most" in str(found)


def test_runs_of_other_schedules_have_none():
    assert version_report([record(0)]) is None
    assert version_report([]) is None


def test_actors_are_busy_for_what_they_ran():
    ran = (invocation("actor", 2.0, 4.0), invocation("actor", 4.0, 5.0))
    one = replace(record(0), actors=2, started_s=0.0, ended_s=5.0, idle_s=0.0, invocations=ran)
    assert busy([one], "actor") == pytest.approx(0.5)
    assert busy([one], "learner") == 0.0


def test_rollouts_that_no_version_was_made_of_are_counted():
    ran = tuple(invocation("actor", 0.0, 2.0 + number, id=f"j/{number}/train/0") for number in range(3))
    made = replace(version(gradient(0, 0, 1.0, 0.0)), arrivals="r0:10 r1:10 r2:10 g0 R3")  # of rollouts 0 and 1
    found = unused([record(0, aggregation=made, invocations=ran)])
    assert found is not None
    assert (found.rollouts, found.of) == (1, 3)
    assert found.share == pytest.approx(4.0 / 9.0)
    assert unused([record(0)]) is None


def test_sinks_get_the_numbers_of_a_version():
    found = scalars(RUN[0], None, None)
    assert found["versions/gradients"] == 2
    assert found["versions/staleness"] == 1.5
    assert found["versions/stalest"] == 3
    assert found["versions/weight"] == 0.75
    assert not any(name.startswith("versions/") for name in scalars(record(0), None, None))


def test_a_record_survives_json():
    for each in RUN:
        assert from_json(each.to_json()) == each
    assert "aggregation" not in record(0).to_json()


@pytest.mark.parametrize(
    ("right", "wrong"), [('"rollouts":[0,1]', '"rollouts":[0,"1"]'), ('"staleness":0', '"staleness":"0"')]
)
def test_a_damaged_version_is_no_record(right, wrong):
    line = RUN[0].to_json()
    assert right in line
    with pytest.raises(ValueError, match="no round record"):
        from_json(line.replace(right, wrong))
