"""What actors sampled is used exactly once, whatever becomes of connections and workers."""

import pytest

from marless.fleet.launchers.registry import Choice
from tests.faults import scale_down, uploads


@pytest.mark.slow  # `make faults` does it at full size
async def test_uploads_that_come_twice_or_late_or_over_broken_lines_are_applied_once(tmp_path):
    figures = await uploads.run(0, tmp_path, uploads=500, per_round=100)
    assert figures["applied"] == 500
    assert figures["resets"] > 0


@pytest.mark.slow  # `make faults` does it at full size
async def test_workers_that_leave_while_they_sample_lose_nothing(tmp_path):
    figures = await scale_down.run(0, tmp_path, times=6)
    assert figures["accepted"] == 54


@pytest.mark.parametrize("launcher", ["local", pytest.param("external", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("workers", "remaining"), [(12, 3), pytest.param(100, 3, marks=pytest.mark.slow)])
async def test_workers_that_leave_all_at_once_lose_nothing(tmp_path, launcher, workers, remaining, record_property):
    figures = await scale_down.at_once(tmp_path, Choice(launcher), workers=workers, remaining=remaining)
    record_property("figures", figures)
    assert (figures["left"], figures["lost"]) == (workers - remaining, 0)
