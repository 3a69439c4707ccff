"""Schedules by name: ours, and those of other packages, by entry points of the group "marless.schedules"."""

from __future__ import annotations

from typing import Any

from marless.core.registry import Registry
from marless.jobs.schedules.base import Schedule, ScheduleConfig, ScheduleKind

SCHEDULES: Registry[ScheduleKind] = Registry(
    "schedule",
    "marless.schedules",
    "SCHEDULE",
    {
        "synchronous": "marless.jobs.schedules.rounds:SYNCHRONOUS",
        "pipelined": "marless.jobs.schedules.rounds:PIPELINED",
        "stellaris": "marless.jobs.schedules.stellaris",
    },
)

schedule = SCHEDULES.find
"""Look up a schedule by name; raises SpecError with the nearest match for an unknown name."""


def made(config: ScheduleConfig) -> Schedule[Any]:  # Any: each schedule has states of its own
    """The schedule of a job with this config."""
    return schedule(config.name).make(config)
