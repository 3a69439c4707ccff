"""What the commands of a schedule that trains in rounds do: a round's rollout, and its update with the record.

Evaluations run beside the update and after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

from marless.core.errors import CancelledJobError, InternalError, StaleError
from marless.core.stopwatch import Stopwatch
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.base import Command, RollOut, Schedule, Step, Train, after
from marless.jobs.schedules.events import ScheduleEvent
from marless.jobs.schedules.rounds import Rounds
from marless.rpc.concurrency import both, to_the_end
from services.coordinator.execution import recording
from services.coordinator.execution.executor import Result, Resumed
from services.coordinator.execution.parts import Parts
from services.coordinator.execution.planning import RoundPlan
from services.coordinator.execution.pools import Rollout, Update
from services.coordinator.state.status import PendingRollout


class RoundCommands:
    """The rounds of one job.

    Args:
        parts: Of the job.
        schedule: Of the job.
        is_last: Whether a round that is not recorded yet may be the job's last: then it evaluates its own policies.
        told: Called once a round is recorded, with the record before it.
    """

    def __init__(
        self,
        parts: Parts,
        schedule: Schedule[Rounds],
        is_last: Callable[[RoundRecord], bool],
        told: Callable[[RoundRecord | None], None],
    ) -> None:
        self._parts = parts
        self._schedule = schedule
        self._is_last = is_last
        self._told = told

    async def resume(self) -> Resumed[Rounds]:
        """Go on after the recorded rounds, and those that are rolled out."""
        events, rounds = list[ScheduleEvent](), self._parts.journal.rounds
        if (last := self.last_round()) is not None:
            events.append(ScheduleEvent("last", last))
        if rounds:
            events.append(ScheduleEvent("version", rounds - 1))
        events += [ScheduleEvent("rollout", each) for each in sorted(self._parts.rolled_out.rounds)]
        state = after(self._schedule, self._parts.job.spec.actors.count, events).state
        return Resumed(state, self._schedule.under_way(state), 0)

    def last_round(self) -> int | None:
        """Follows from `stop`: what was sampled ahead counts, too."""
        rolled_out, stop = self._parts.rolled_out, self._parts.job.spec.stop
        if stop.env_steps is not None and rolled_out.rounds and rolled_out.env_steps >= stop.env_steps:
            return max(rolled_out.rounds)
        return None if stop.rounds is None else stop.rounds - 1

    def enter(self, plan: RoundPlan, state: Rounds, *, fixed: bool) -> tuple[ScheduleEvent, ...]:
        """The commands themselves obey the plan."""
        return ()

    def begins(self, command: Command, plan: RoundPlan, state: Rounds) -> None:
        """What has led to a command is in the records."""

    async def do(self, command: Command, plan: RoundPlan, state: Rounds) -> Result:
        """Run a round's actors, or its update; `plan` is that of the round that is trained next."""
        match command:
            case RollOut(round_, clock):
                acting = plan if clock == plan.round else self._parts.planner.again()
                return await _roll_out(self._parts, round_, acting)
            case Train():
                before = self._parts.journal.last
                await self._parts.flusher.done()
                await _train(self._parts, plan, self._is_last)
                self._told(before)
                return None
        raise InternalError(f"{command} is no command of a schedule that trains in rounds")

    def happened(self, event: ScheduleEvent, result: Result, step: Step[Rounds]) -> None:
        """A round begins with the end of the one before, if its rollout began beside that."""
        if event.kind == "version" and self._parts.rolled_out.actors(event.number + 1):
            self._parts.timing.begin(event.number + 1)

    def waiting(self, plan: RoundPlan) -> AbstractAsyncContextManager[None]:
        """A round's commands have steps of their own."""
        return nullcontext()

    def in_flight(self, state: Rounds) -> int:
        """Nothing can be lost: a command that fails is repeated after a recovery."""
        return 0

    def recorded(self, round_: int) -> bool:
        return self._parts.journal.rounds > round_

    async def stop(self) -> None:
        """Nothing runs beside the commands."""


async def _roll_out(parts: Parts, round_: int, plan: RoundPlan) -> PendingRollout:
    """Run the actors of a round by this plan, and write the outcome to pending.json before its update."""
    epoch, journal = parts.recovery.epoch, parts.journal
    parts.rolled_out.begin(round_, plan.actors)
    waited = await parts.reservations.make_sure(round_, plan.actors, epoch)
    if round_ == journal.rounds:  # no earlier round is being trained: the job waits for these actors
        if waited:
            parts.timing.interrupted()
        parts.timing.begin(round_)
    else:
        await parts.lanes.publish(epoch, round_ - 1)  # where workers begin that did not run this lane before
    lanes = parts.rolled_out.lanes_before(round_)
    async with parts.steps.step(round_, "actors sample"):
        rollout = await parts.pools.train(
            parts.job_id,
            parts.job,
            round_,
            actors=plan.actors,
            groups=plan.groups,
            versions=plan.versions,
            lanes=lanes,
            epoch=epoch,
        )
    parts.lanes.put(round_, rollout.carries)
    pending = PendingRollout(
        round=round_,
        rollout_s=parts.timing.waited_s(round_),
        env_steps=rollout.env_steps,
        returns=rollout.returns,
        invocations=rollout.invocations,
        lanes=recording.left(lanes, rollout.lanes),
        actors=plan.actors,
    )
    parts.rolled_out.put(pending)
    return pending


async def _train(parts: Parts, plan: RoundPlan, is_last: Callable[[RoundRecord], bool]) -> None:
    """Train the round of this plan, run the evaluations that are due, and append the record durably.

    Args:
        is_last: Whether a round that is not recorded yet may be the job's last: then it evaluates its own policies.
    """
    pending = parts.rolled_out.of(plan.round)
    times, updating, before = parts.timing.present(pending.rollout_s), Stopwatch.start(), parts.journal.last
    async with parts.evaluations.during_update(before, parts.recovery.epoch) as evaluating:
        async with parts.steps.step(plan.round, "learners update"):
            update, machines = await both(_update(parts, plan, pending), parts.machines.look())
        parts.reservations.keep(plan.round + 1, update.room)
        update_s = updating.seconds
        earlier, earlier_s = await _evaluated(parts, plan, evaluating)
    # Recorded, so that a rollout that began beside this update has as many actors when it is repeated after a kill.
    ahead = parts.rolled_out.actors(plan.round + 1)
    record = recording.trained(parts.job_id, plan, pending, update, times=times, update_s=update_s, ahead=ahead)
    record = recording.with_earlier(record, before, earlier)
    own_policies = parts.evaluations.of(record, parts.recovery.epoch) if is_last(record) else None
    own, own_s = await _evaluated(parts, plan, own_policies)
    changes = parts.machines.changes(machines)
    record = recording.finished(record, own, changes, times=times, evaluation_s=earlier_s + own_s)
    await to_the_end(parts.journal.append, record)
    parts.timing.recorded(record)


async def _update(parts: Parts, plan: RoundPlan, pending: PendingRollout) -> Update:
    """Update the policies; meanwhile publish carries, sync pending.json to disk and pre-warm the next actors."""
    parts.warming.expect(plan.actors)
    # Awaited below in any case, because a thread that syncs the file must not outlive this job's hold of its folder.
    syncing = asyncio.create_task(to_the_end(_during_the_update, parts))
    try:
        epoch = parts.recovery.epoch
        update = parts.pools.update(
            parts.job_id,
            round_=plan.round,
            epoch=epoch,
            env_steps=plan.env_steps,
            actors=pending.actors,
            groups=plan.groups,
            versions=plan.versions,
            measure=parts.planner.measure(pending.returns),
        )
        return (await both(update, parts.lanes.publish(epoch, plan.round)))[0]
    except StaleError:
        parts.rolled_out.lost()
        raise
    finally:
        await syncing


def _during_the_update(parts: Parts) -> None:
    parts.folder.sync_pending()
    parts.costs.catch_up()


async def _evaluated(
    parts: Parts, plan: RoundPlan, evaluating: Awaitable[Rollout] | None
) -> tuple[Rollout | None, float]:
    """Wait for an evaluation, if there is one; returns it, None if the job is cancelled first, and the seconds."""
    if evaluating is None:
        return None, 0.0
    evaluation, waiting = None, Stopwatch.start()
    with suppress(CancelledJobError):
        async with parts.steps.step(plan.round, "actors evaluate"):
            evaluation = await evaluating
    return evaluation, waiting.seconds
