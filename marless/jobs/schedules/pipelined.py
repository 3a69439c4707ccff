"""Schedule `pipelined`: while a round is trained, the next one is rolled out with the versions that exist already.

So actors and learners work at the same time, and all rounds but the first are trained on what policies did that are one
version old. The staleness is exactly 1, whatever takes how long, and equal jobs come to equal weights.
"""

from __future__ import annotations

from typing import Literal

from marless.core.errors import SpecError
from marless.jobs.schedules.base import Command, RollOut, ScheduleConfig, ScheduleState, Train
from marless.learning.algos.algorithm import AlgorithmConfig


class PipelinedConfig(ScheduleConfig):
    """No settings."""

    name: Literal["pipelined"] = "pipelined"


class Pipelined:
    """Round k + 1 is rolled out with the versions of round k - 1 while round k is trained."""

    config_type = PipelinedConfig
    ahead = 1

    def check(self, config: ScheduleConfig, algorithm: AlgorithmConfig) -> None:
        """Raise SpecError for an algorithm that learns only from what its present policies do."""
        if not algorithm.learns_from_earlier:
            raise SpecError(
                f"schedule.name pipelined trains policies on what an earlier version of them did, and algorithm "
                f"{algorithm.name} does not say that it can (learns_from_earlier); use schedule.name synchronous"
            )

    def make(self, config: ScheduleConfig) -> Pipelined:
        """Make the schedule, which has no settings."""
        return self

    def due(self, state: ScheduleState) -> tuple[Command, ...]:
        k = state.recorded
        if k not in state.rolled_out:
            # As if it had begun beside round k - 1, as it does unless that was interrupted: a
            # decision must not depend on that.
            return (RollOut(k, decided=max(k - 1, 0)),)
        if k + 1 in state.rolled_out or k == state.last:
            return (Train(k),)
        return (Train(k), RollOut(k + 1, decided=k))


SCHEDULE = Pipelined()
