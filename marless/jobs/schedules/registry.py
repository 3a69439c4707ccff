"""Schedules by name: ours, and those of other packages, by entry points of the group "marless.schedules"."""

from __future__ import annotations

from marless.core.registry import Registry
from marless.jobs.schedules.base import Schedule, ScheduleConfig, ScheduleKind

SCHEDULES: Registry[ScheduleKind] = Registry(
    "schedule",
    "marless.schedules",
    "SCHEDULE",
    {name: f"marless.jobs.schedules.{name}" for name in ("synchronous", "pipelined", "stellaris")},
)

schedule = SCHEDULES.find
"""Look up a schedule by name; raises SpecError with the nearest match for an unknown name."""


def made(config: ScheduleConfig) -> Schedule:
    """The schedule of a job with this config."""
    return schedule(config.name).make(config)
