"""A bill by CPU time does not measure what else the machine does."""

import asyncio
import os

import pytest

from bench import busy
from bench.systems import Request, settings
from marless.cost.comparison.report import MUCH_WAITING
from marless.jobs import spec


@pytest.mark.slow
@pytest.mark.alone
def test_a_busy_machine_makes_a_job_dearer_by_duration_and_hardly_by_cpu_time(tmp_path):
    job = spec.parse({"name": "busy", **settings(Request(0, 0)), "stop": {"rounds": busy.ROUNDS}}, "job")
    found = []
    for loops in (0, busy.LOOPS * os.cpu_count()):
        with busy.busy(loops):
            found.append(busy.row(0, loops, asyncio.run(busy.train(job, tmp_path / f"{loops}")), job))
    alone, beside = found
    assert beside["by duration ($)"] > 1.5 * alone["by duration ($)"]
    assert beside["by CPU time ($)"] == pytest.approx(alone["by CPU time ($)"], rel=0.2)
    assert beside["waiting"] > MUCH_WAITING
