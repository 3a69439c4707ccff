"""A schedule: synchronous in the first rounds, in which policies change fast; from then on, rounds overlap."""

from __future__ import annotations

from typing import Literal

from marless.jobs.schedules.base import RollOut, ScheduleConfig, Train
from marless.jobs.schedules.rounds import PIPELINED, Rounds, RoundSchedule
from marless.learning.algos.algorithm import AlgorithmConfig
from pydantic import Field


class MyScheduleConfig(ScheduleConfig):
    """Settings of the section `schedule` of a job."""

    name: Literal["my_schedule"] = "my_schedule"
    after: int = Field(20, ge=0, description="rounds that overlap no other")


class MySchedule(RoundSchedule):
    """Says what is due in a state; the base class makes events into states."""

    ahead = 1  # a round may be rolled out beside the training of the one before; else 0

    def __init__(self, after: int) -> None:
        self.after = after

    def clock(self, number: int) -> int:
        """After how many rounds it is decided who acts in round `number`, with which versions."""
        return number if number < self.after else max(number - 1, 0)

    def due(self, state: Rounds) -> tuple[RollOut | Train, ...]:
        """All commands that should be under way in this state, the most urgent first."""
        k = state.recorded
        if k not in state.rolled_out:
            return (RollOut(k, clock=self.clock(k)),)
        ahead = k + 1
        if ahead in state.rolled_out or k == state.last or self.clock(ahead) > k:
            return (Train(k),)
        return (Train(k), RollOut(ahead, clock=k))


class MyScheduleKind:
    """What marless finds by the name `my_schedule`."""

    config_type: type[ScheduleConfig] = MyScheduleConfig

    def check(self, config: ScheduleConfig, algorithm: AlgorithmConfig) -> None:
        """Refuse algorithms that must see what their present policies do."""
        PIPELINED.check(config, algorithm)

    def make(self, config: ScheduleConfig) -> MySchedule:
        """Make the schedule of one job."""
        return MySchedule(MyScheduleConfig.model_validate(config).after)


SCHEDULE = MyScheduleKind()
