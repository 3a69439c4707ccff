"""Executes the schedules that train in rounds: what they say is due runs side by side, each command as a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from marless.core.errors import InternalError
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.base import Command, RollOut, Schedule, ScheduleState, Train
from services.coordinator.execution.commands import roll_out, train
from services.coordinator.execution.parts import Parts
from services.coordinator.execution.planning import RoundPlan


class Rounds:
    """The commands of one job that are under way; an async context manager.

    When it ends, those that are still under way are cancelled, and have ended, too.

    Args:
        is_last: Whether a round that is not recorded yet may be the job's last.
        recorded: Called once a round is recorded, with the record before it.
    """

    def __init__(
        self,
        parts: Parts,
        schedule: Schedule,
        is_last: Callable[[RoundRecord], bool],
        recorded: Callable[[RoundRecord | None], None],
    ) -> None:
        self._parts = parts
        self._schedule = schedule
        self._is_last = is_last
        self._recorded = recorded
        self._tasks: dict[Command, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def advance(self, plan: RoundPlan) -> None:
        """Go on until the round of this plan is recorded."""
        journal = self._parts.journal
        while journal.rounds == plan.round:
            for command in self._schedule.due(self._state()):
                if command not in self._tasks:
                    self._tasks[command] = asyncio.create_task(self._do(plan, command))
            await self._until_one_ends()
        if self._parts.rolled_out.actors(journal.rounds):  # it began beside the update
            self._parts.timing.begin(journal.rounds)

    async def _until_one_ends(self) -> None:
        """Wait until a command ends; raises its error if it has failed, InternalError if there is none to wait for."""
        if not self._tasks:
            raise InternalError("the job's schedule says that nothing is due, and the job has not ended")
        await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        ended = [command for command, task in self._tasks.items() if task.done()]
        for task in [self._tasks.pop(command) for command in ended]:
            task.result()

    def _state(self) -> ScheduleState:
        """What is durable, as schedules see it."""
        parts = self._parts
        rolled_out, stop = parts.rolled_out.rounds, parts.job.spec.stop
        last = None if stop.rounds is None else stop.rounds - 1
        # What was sampled ahead counts, so that no rollout begins whose round would never be trained.
        if stop.env_steps is not None and rolled_out and parts.rolled_out.env_steps >= stop.env_steps:
            last = max(rolled_out)
        return ScheduleState(recorded=parts.journal.rounds, rolled_out=rolled_out, last=last)

    async def _do(self, plan: RoundPlan, command: Command) -> None:
        """Execute a command of the schedule; `plan` is that of the round that is trained next."""
        match command:
            case RollOut(round_, decided):
                await roll_out(self._parts, round_, plan if decided == plan.round else self._parts.planner.again())
            case Train():
                before = self._parts.journal.last
                await self._parts.flusher.done()
                await train(self._parts, plan, self._is_last)
                self._recorded(before)
