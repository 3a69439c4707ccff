"""The job that repeats an asynchronous run."""

from dataclasses import replace

import pytest
import yaml

from marless.core.errors import SpecError
from marless.jobs import spec
from marless.jobs.asynchronous_run import replayed
from marless.jobs.schedules.events import read
from marless.jobs.schedules.overlapping import MAX_ORDER
from marless.jobs.schedules.stellaris import StellarisConfig
from tests.unit.cost.billing.rounds import job
from tests.unit.jobs.test_record import record
from tests.unit.jobs.test_version_report import RUN

SPEC = job(schedule="stellaris", actors={"count": 2, "envs": 1, "steps": 25, "episodes": "fresh"})


def test_it_follows_the_events_of_all_versions_and_ends_with_the_last():
    again = replayed(SPEC, RUN)
    assert again.schedule.order == ("r0:10 g0 r0:10 g0",)
    assert again.stop.model_dump(exclude_none=True) == {"rounds": 2}
    assert again.model_copy(update={"schedule": SPEC.schedule, "stop": SPEC.stop}) == SPEC


def test_a_run_of_thousands_of_versions_fits_into_a_job_file():
    """No document has a string of more than MAX_TEXT characters."""
    made = RUN[0].aggregation
    assert made is not None
    many = [replace(RUN[0], aggregation=replace(made, arrivals=f"r{n}:2000 g{n}")) for n in range(20_000)]
    again = replayed(SPEC, many)
    assert spec.from_json(again.to_json()) == again
    assert spec.parse(yaml.safe_load(again.to_yaml()), "spec.yaml") == again
    expected = read(" ".join(f"r{n}:2000 g{n}" for n in range(20_000)))
    assert isinstance(again.schedule, StellarisConfig)
    assert again.schedule.to_repeat == expected


def test_an_order_may_be_one_text_or_several():
    one, several = (StellarisConfig.model_validate({"order": each}) for each in ("r0:1 g0", ["r0:1", "g0"]))
    assert one.to_repeat == several.to_repeat == read("r0:1 g0")
    with pytest.raises(ValueError, match=f"at most {MAX_ORDER:,} are taken"):
        StellarisConfig.model_validate({"order": ["r1:1 " * 1000] * 200})


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
