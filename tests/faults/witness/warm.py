"""A schedule of somebody else's, whose rollouts overlap: synchronous at first, and without waiting from then on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from marless.jobs.schedules.base import Command, Step
from marless.jobs.schedules.events import ScheduleEvent
from marless.jobs.schedules.overlapping import Overlapping, OverlappingConfig
from marless.jobs.schedules.stellaris import Stellaris, StellarisConfig

SYNCHRONOUS = Stellaris(StellarisConfig.model_validate({"barrier": True, "aggregation": "sync"}))
FREE = Stellaris(StellarisConfig.model_validate({}))


class WarmConfig(OverlappingConfig):
    name: Literal["warm"] = "warm"
    versions: int = Field(2, description="versions that are made of the gradients of all actors")


@dataclass(frozen=True)
class Warm:
    versions: int
    ahead: ClassVar[int] = 0

    def begin(self, actors: int) -> Step[Overlapping]:
        return SYNCHRONOUS.begin(actors)

    def step(self, state: Overlapping, event: ScheduleEvent) -> Step[Overlapping]:
        return (SYNCHRONOUS if state.queue.clock < self.versions else FREE).step(state, event)

    def under_way(self, state: Overlapping) -> tuple[Command, ...]:
        return FREE.under_way(state)


class WarmKind:
    config_type = WarmConfig

    def check(self, config, algorithm) -> None:
        """Every algorithm will do."""

    def make(self, config) -> Warm:
        return Warm(config.versions)


SCHEDULE = WarmKind()
