"""Schedule `synchronous`: a round is rolled out with the newest versions, then trained; then comes the next one."""

from __future__ import annotations

from typing import Literal

from marless.jobs.schedules.base import Command, RollOut, ScheduleConfig, ScheduleState, Train
from marless.learning.algos.algorithm import AlgorithmConfig


class SynchronousConfig(ScheduleConfig):
    """No settings."""

    name: Literal["synchronous"] = "synchronous"


class Synchronous:
    """One round after another. Every policy is trained on what it did itself."""

    config_type = SynchronousConfig
    ahead = 0

    def check(self, config: ScheduleConfig, algorithm: AlgorithmConfig) -> None:
        """Every algorithm learns under it."""

    def make(self, config: ScheduleConfig) -> Synchronous:
        """Make the schedule, which has no settings."""
        return self

    def due(self, state: ScheduleState) -> tuple[Command, ...]:
        k = state.recorded
        return (Train(k),) if k in state.rolled_out else (RollOut(k, decided=k),)


SCHEDULE = Synchronous()
