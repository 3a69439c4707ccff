"""Runs a schedule on a virtual clock, round by round, with durations that its caller knows or models.

Simulations, dry runs, estimates and modelled bills run the schedules that the coordinator runs. The clock is relative:
it reads 0 when the round before is recorded. So a round that overlaps no other takes exactly its durations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from marless.core.errors import InternalError
from marless.jobs.schedules.base import RollOut, Schedule, ScheduleState, Train

Duration = Callable[[float], float]
"""How many seconds a command takes that begins at the given time."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """A round on the clock, which reads 0 when the round before was recorded."""

    began_s: float
    """When its rollout began; negative if that was beside the training of the round before."""
    waited_s: float
    """When its training began: the time that the job waited for its rollout."""
    ended_s: float
    """When it was recorded."""


@dataclass(frozen=True)
class VirtualRun:
    """A job between two rounds. Immutable, so that many runs can share their past."""

    schedule: Schedule
    recorded: int = 0
    last: int | None = None
    """The job's last round, if it is known."""
    ahead: tuple[tuple[RollOut, float], ...] = ()
    """Rollouts that have begun already, and when."""

    def rest(self, seconds: float) -> VirtualRun:
        """The same run when it has been idle for some time; rollouts that have begun go on."""
        return replace(self, ahead=tuple((command, began_s - seconds) for command, began_s in self.ahead))

    def round(self, rolled_out: Duration, trained: Duration) -> tuple[Times, VirtualRun]:
        """Run the next round to its record; its durations are those of these functions, each of which is called once.

        Raises InternalError if the schedule lets the job stand still.
        """
        number, now_s, began = self.recorded, 0.0, dict(self.ahead)
        state = ScheduleState(recorded=number, last=self.last)
        rollout = self._begin(state, began, now_s, number)
        began_s = began.pop(rollout)
        waited_s = now_s = max(began_s + rolled_out(began_s), 0.0)
        state = replace(state, rolled_out=frozenset((number,)))
        due = self.schedule.due(state)
        if Train(number) not in due:
            raise InternalError(f"the schedule does not train round {number + 1}, which is rolled out")
        for command in due:
            if isinstance(command, RollOut):
                began.setdefault(command, now_s)
        ended_s = now_s + trained(now_s)
        left = tuple((command, at_s - ended_s) for command, at_s in began.items())
        times = Times(began_s=began_s, waited_s=waited_s, ended_s=ended_s)
        return times, replace(self, recorded=number + 1, ahead=left)

    def _begin(self, state: ScheduleState, began: dict[RollOut, float], now_s: float, number: int) -> RollOut:
        """The rollout of a round, which begins now unless it has begun."""
        for command in (*began, *self.schedule.due(state)):
            if isinstance(command, RollOut) and command.round == number:
                began.setdefault(command, now_s)
                return command
        raise InternalError(f"the schedule does not roll out round {number + 1}")
