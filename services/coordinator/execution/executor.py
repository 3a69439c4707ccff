"""Executes the schedule of a job: its commands run as tasks, and the end of each is an event that it follows.

One executor serves every schedule. What commands do, and what of it is durable, is up to `Commands`: those of rounds
(`round_commands.py`), or of rollouts that overlap (`version_commands.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

from marless.core.errors import InternalError, SpecError, UnreachableError
from marless.jobs.schedules.base import Command, Learn, Publish, RollOut, Schedule, Step, Train
from marless.jobs.schedules.events import ScheduleEvent
from marless.services.coordinator.execution.planning import RoundPlan
from marless.services.coordinator.execution.pools import GradientResult, RolloutResult
from marless.services.coordinator.state.status import PendingRollout

MOST_LOST = 64
"""Rollouts and gradients that are lost, without one gradient between them, before the job waits for its services to
recover, beside those that were under way or waited when the first was lost, which may be lost at once."""
Result = RolloutResult | PendingRollout | GradientResult | None
"""What a command has made: a rollout, that of a round, a gradient; None: it is lost, or it was a version."""
State = TypeVar("State")


@dataclass(frozen=True)
class Resumed(Generic[State]):
    """Where a job goes on."""

    state: State
    due: tuple[Command, ...]
    """Commands to be started: all that are under way in this state, because none of them is here."""
    happened: int
    """How many events of those that an order may have are behind it."""
    restarted: bool = False
    """True if the last of them is a restart that has happened just now, because what was under way is lost."""


class Commands(Protocol[State]):
    """What the commands of one job do."""

    async def resume(self) -> Resumed[State]:
        """Find out what is durable of the job, and what is left of it in the pools and the store."""
        ...

    def enter(self, plan: RoundPlan, state: State, *, fixed: bool) -> tuple[ScheduleEvent, ...]:
        """Go on to the round of this plan; returns what happens because it is decided.

        Args:
            plan: Of the round.
            state: Of the schedule.
            fixed: What happens is known already: the events of an earlier run are repeated, or have led to a version.
        """
        ...

    def begins(self, command: Command, plan: RoundPlan, state: State) -> None:
        """A command is about to be started: what has led to it may have to be written down."""
        ...

    async def do(self, command: Command, plan: RoundPlan, state: State) -> Result:
        """Execute a command, as started in this state; what it makes is durable, or can be repeated, when it ends."""
        ...

    def happened(self, event: ScheduleEvent, result: Result, step: Step[State]) -> None:
        """An event has happened, and this follows from it."""
        ...

    def waiting(self, plan: RoundPlan) -> AbstractAsyncContextManager[None]:
        """Surrounds each wait for an event, except for those that make a version."""
        ...

    def in_flight(self, state: State) -> int:
        """How many commands are under way, and how many of their results wait."""
        ...

    def last_round(self) -> int | None:
        """The job's last round, once it is known; None: it is not, or the schedule need not know it."""
        ...

    def recorded(self, round_: int) -> bool:
        """True if this round is recorded."""
        ...

    @property
    def evaluating(self) -> int | None:
        """The round whose policies are evaluated beside the commands; None if there is none."""
        ...

    async def stop(self) -> None:
        """Stop what runs beside the commands."""
        ...


class Executor(Generic[State]):
    """The commands of one job that are under way; an async context manager.

    When it ends, those that are still under way are cancelled, and have ended, too.

    Args:
        schedule: Of the job.
        commands: What its commands do.
        order: Events that are to happen as in an earlier run.
    """

    def __init__(self, schedule: Schedule[State], commands: Commands[State], order: tuple[ScheduleEvent, ...]) -> None:
        self._schedule = schedule
        self._commands = commands
        self._order = deque(order)
        self._state: State
        self._due: tuple[Command, ...] = ()
        """Commands that are not started yet."""
        self._making: Train | Publish | None = None
        """What makes the next version, if it is under way or due."""
        self._tasks: dict[Command, asyncio.Task[Result]] = {}
        self._ended: asyncio.Queue[Command] = asyncio.Queue()  # bounded by the number of tasks
        self._dropped: list[asyncio.Task[Result]] = []
        """Cancelled tasks that may not have ended."""
        self._lost_in_a_row, self._may_be_lost = 0, 0

    async def __aenter__(self) -> Self:
        resumed = await self._commands.resume()
        self._state = resumed.state
        self._add(resumed.due)
        repeated = [self._order.popleft() for _ in range(min(resumed.happened, len(self._order)))]
        # A repetition that went on from here would come to other weights, perhaps without another event that differs.
        if resumed.restarted and len(repeated) == resumed.happened and repeated[-1].kind != "restart":
            raise SpecError(
                f"schedule.order: {repeated[-1]} is to happen next, and what was under way has been lost with its "
                "store; the runs differ; start the repetition once more"
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._drop_tasks()
        await asyncio.gather(*self._dropped, self._commands.stop(), return_exceptions=True)

    @property
    def evaluating(self) -> int | None:
        """The round whose policies are evaluated beside the commands; None if there is none."""
        return self._commands.evaluating

    async def advance(self, plan: RoundPlan) -> None:
        """Go on until the round of this plan is recorded."""
        fixed = bool(self._order) or self._making is not None
        for event in self._commands.enter(plan, self._state, fixed=fixed):
            self._apply(event)
        while not self._commands.recorded(plan.round):
            # Decisions of the run that is repeated: no task has to end for them.
            while self._order and self._order[0].kind in ("actors", "restart") and not self._making:
                self._apply(self._order[0])
            self._start(plan)
            if self._making:
                self._apply(await self._version(self._making))
                continue
            async with self._commands.waiting(plan):
                event, result = await self._next()
            # First, so that no rollout begins whose round would never be trained.
            if (last := self._commands.last_round()) is not None:
                self._apply(ScheduleEvent("last", last))
            self._apply(event, result)

    def _add(self, commands: tuple[Command, ...]) -> None:
        self._due += commands
        self._making = next((each for each in commands if isinstance(each, Train | Publish)), self._making)

    def _start(self, plan: RoundPlan) -> None:
        """Start what is due, but after a `Publish` nothing of the version that it makes."""
        number = next((k for k, each in enumerate(self._due, 1) if isinstance(each, Publish)), len(self._due))
        due, self._due = self._due[:number], self._due[number:]
        for command in due:
            self._commands.begins(command, plan, self._state)
            task = asyncio.create_task(self._do(command, plan, self._state))
            self._tasks[command] = task
            task.add_done_callback(partial(self._has_ended, command))

    async def _do(self, command: Command, plan: RoundPlan, state: State) -> Result:
        if isinstance(command, Learn) and self._is_to_be_lost(command.learner):
            return None
        return await self._commands.do(command, plan, state)

    def _is_to_be_lost(self, learner: int) -> bool:
        """True if this learner was lost in the run that is repeated: it might publish what that run has not."""
        ends = (
            each.kind
            for each in self._order
            if each.kind == "restart" or (each.kind.endswith("gradient") and each.number == learner)
        )
        return next(ends, "gradient") != "gradient"

    def _has_ended(self, command: Command, _: asyncio.Task[Result]) -> None:
        self._ended.put_nowait(command)

    async def _version(self, making: Train | Publish) -> ScheduleEvent:
        """Wait for a version alone: what it leads to is decided before anything else that has ended is looked at."""
        await self._tasks[making]
        del self._tasks[making]
        self._making = None
        return ScheduleEvent("version", making.round if isinstance(making, Train) else making.aggregation.clock)

    async def _next(self) -> tuple[ScheduleEvent, Result]:
        """The next event: the next one of the order that is followed, else whatever ends first."""
        if self._order:
            return await self._in_order(self._order[0])
        if not self._tasks:
            raise InternalError("the job's schedule says that nothing is due, and the job has not ended")
        while True:
            command = await self._ended.get()
            # The command of a task that was dropped is in the queue, too, because a cancelled task has ended.
            if task := self._tasks.pop(command, None):
                return self._event(command, task.result())

    async def _in_order(self, wanted: ScheduleEvent) -> tuple[ScheduleEvent, Result]:
        """Wait until this event can happen; raises SpecError if it cannot."""
        command = self._awaited(wanted)
        task = self._tasks.pop(command)
        # Lost in the earlier run, it must not count here either, even if it would succeed.
        if wanted.kind.startswith("lost"):
            task.cancel()
            self._dropped.append(task)
            return wanted, None
        event, result = self._event(command, await task)
        if event != wanted:
            raise SpecError(f"schedule.order: {wanted} is to happen next, and {event} has; the runs differ")
        return event, result

    def _awaited(self, wanted: ScheduleEvent) -> Command:
        kind = RollOut if wanted.kind.endswith("rollout") else Learn
        for command in self._tasks:
            if isinstance(command, kind) and _number(command) == wanted.number:
                return command
        raise SpecError(f"schedule.order: {wanted} is to happen next, and it is not under way; the runs differ")

    def _event(self, command: Command, result: Result) -> tuple[ScheduleEvent, Result]:
        """The event that a command has ended; raises UnreachableError once too many are lost without a gradient."""
        if result is None:
            if not self._lost_in_a_row:
                self._may_be_lost = MOST_LOST + self._commands.in_flight(self._state)
            self._lost_in_a_row += 1
        # Rollouts do not end a row of losses: they go on with weights that actors hold in memory, also if the store has
        # lost those versions and every gradient fails.
        elif isinstance(command, Learn):
            self._lost_in_a_row = 0
        if self._lost_in_a_row > self._may_be_lost:
            most = self._may_be_lost
            raise UnreachableError(f"{most} rollouts and gradients were lost without one gradient between them")
        if isinstance(command, Learn):
            return ScheduleEvent("gradient" if result else "lost gradient", command.learner), result
        if isinstance(result, RolloutResult | PendingRollout):
            return ScheduleEvent("rollout", _number(command), result.env_steps), result
        return ScheduleEvent("lost rollout", _number(command)), None

    def _apply(self, event: ScheduleEvent, result: Result = None) -> None:
        """An event has happened: find what follows from it, which is started by `_start`."""
        if self._order and event.kind not in ("version", "last"):
            self._order.popleft()
        if event.kind == "restart":
            self._drop_tasks()
        step = self._schedule.step(self._state, event)
        self._state = step.state
        self._add(step.commands)
        self._commands.happened(event, result, step)

    def _drop_tasks(self) -> None:
        """Stop all that is under way: it is not waited for any more."""
        for task in self._tasks.values():
            task.cancel()
        self._dropped += self._tasks.values()
        self._tasks, self._due, self._making = {}, (), None


def _number(command: Command) -> int:
    match command:
        case RollOut(number):
            return number
        case Learn(learner):
            return learner
    raise InternalError(f"{command} has no number")
