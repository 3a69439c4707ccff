"""The job that repeats an asynchronous run."""

from dataclasses import replace

import pytest

from marless.errors import SpecError
from marless.replay import replayed
from marless.schedules.stellaris_config import MAX_ORDER
from tests.unit.billing.rounds import job
from tests.unit.test_record import record
from tests.unit.test_version_report import RUN

SPEC = job(schedule="stellaris", actors={"count": 2, "envs": 1, "steps": 25, "episodes": "fresh"})


def test_it_follows_the_events_of_all_versions_and_ends_with_the_last():
    again = replayed(SPEC, RUN)
    assert again.schedule.order == "r0:10 g0 r0:10 g0"
    assert again.stop.model_dump(exclude_none=True) == {"rounds": 2}
    assert again.model_copy(update={"schedule": SPEC.schedule, "stop": SPEC.stop}) == SPEC


def test_runs_of_other_schedules_need_none():
    with pytest.raises(SpecError, match="of schedule synchronous, whose results do not depend on the order"):
        replayed(job(), [record(0)])


def test_a_run_that_has_lost_a_part_of_its_replay_is_refused():
    lost = [*RUN[:-1], replace(RUN[-1], metrics={"replay.team": {"inserted": 30.0, "lost": 1250.0}})]
    with pytest.raises(SpecError, match=r"replay\.team of the run has lost 1,250 env steps.*start a new job"):
        replayed(SPEC, lost)
    replayed(SPEC, [*RUN[:-1], replace(RUN[-1], metrics={"replay.team": {"inserted": 30.0, "lost": 0.0}})])


def test_what_has_no_version_or_too_many_is_refused():
    with pytest.raises(SpecError, match="no version yet"):
        replayed(SPEC, [])
    made = RUN[0].aggregation
    assert made is not None
    long = replace(RUN[0], aggregation=replace(made, arrivals="r1:1 " * MAX_ORDER))
    with pytest.raises(SpecError, match=f"at most {MAX_ORDER:,} are taken"):
        replayed(SPEC, [long])
