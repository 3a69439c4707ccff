"""Runs a schedule of rounds on a virtual clock, round by round, with durations that its caller knows or models.

Simulations, dry runs, estimates and modelled bills run the schedules that the coordinator runs. The clock is relative:
it reads 0 when the round before is recorded. So a round that overlaps no other takes exactly its durations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from marless.core.errors import InternalError
from marless.jobs.schedules.base import Command, RollOut, Schedule, ScheduleConfig, Train, made
from marless.jobs.schedules.events import ScheduleEvent
from marless.jobs.schedules.rounds import PIPELINED

Duration = Callable[[float], float]
"""How many seconds a command takes that begins at the given time."""


def of_rounds(config: ScheduleConfig) -> Schedule[Any]:  # Any: each schedule has states of its own
    """The schedule that models of rounds run for a job with this config.

    It is the job's own unless its rollouts overlap. Then rounds are versions, and they are modelled as `pipelined`:
    the rollouts of a version run while the one before it is made.
    """
    return PIPELINED if config.overlapping else made(config)


@dataclass(frozen=True, kw_only=True)
class Times:
    """A round on the clock, which reads 0 when the round before was recorded."""

    began_s: float
    """When its rollout began; negative if that was beside the training of the round before."""
    waited_s: float
    """When its training began: the time that the job waited for its rollout."""
    ended_s: float
    """When it was recorded."""


@dataclass(frozen=True, kw_only=True)
class VirtualRun:
    """A job between two rounds. Immutable, so that many runs can share their past."""

    schedule: Schedule[Any]
    state: Any
    """Of the schedule."""
    due: tuple[Command, ...]
    """Commands that begin with the next round."""
    recorded: int = 0
    ahead: tuple[tuple[RollOut, float], ...] = ()
    """Rollouts that have begun already, and when."""

    @classmethod
    def of(cls, schedule: Schedule[Any], *, last: int | None = None) -> VirtualRun:
        """A job before its first round; `last` is the number of its last one, if it is known."""
        step = schedule.begin(1)  # rounds have as many actors as their durations say
        state = step.state if last is None else schedule.step(step.state, ScheduleEvent("last", last)).state
        return cls(schedule=schedule, state=state, due=step.commands)

    def rest(self, seconds: float) -> VirtualRun:
        """The same run when it has been idle for some time; rollouts that have begun go on."""
        return replace(self, ahead=tuple((command, began_s - seconds) for command, began_s in self.ahead))

    def round(self, rolled_out: Duration, trained: Duration) -> tuple[Times, VirtualRun]:
        """Run the next round to its record; its durations are those of these functions, each of which is called once.

        Raises InternalError if the schedule lets the job stand still.
        """
        number, began = self.recorded, dict(self.ahead)
        began |= {command: 0.0 for command in self.due if isinstance(command, RollOut)}
        rollout = next((command for command in began if command.number == number), None)
        if rollout is None:
            raise InternalError(f"the schedule does not roll out round {number + 1}")
        began_s = began.pop(rollout)
        waited_s = max(began_s + rolled_out(began_s), 0.0)
        step = self.schedule.step(self.state, ScheduleEvent("rollout", number))
        if Train(number) not in step.commands:
            raise InternalError(f"the schedule does not train round {number + 1}, which is rolled out")
        began |= {command: waited_s for command in step.commands if isinstance(command, RollOut)}
        ended_s = waited_s + trained(waited_s)
        step = self.schedule.step(step.state, ScheduleEvent("version", number))
        times = Times(began_s=began_s, waited_s=waited_s, ended_s=ended_s)
        ahead = tuple((command, at_s - ended_s) for command, at_s in began.items())
        return times, replace(self, state=step.state, due=step.commands, recorded=number + 1, ahead=ahead)
