"""What the commands of a schedule that trains in rounds do: a round's rollout, and its update with the record.

Evaluations run beside the update and after it.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext

from marless.core.errors import InternalError, StaleError
from marless.core.stopwatch import Stopwatch
from marless.jobs.schedules.base import Command, RollOut, Schedule, Step, Train, after
from marless.jobs.schedules.events import ScheduleEvent
from marless.jobs.schedules.rounds import Rounds
from marless.rpc.concurrency import both, to_the_end
from marless.services.coordinator.execution import recording
from marless.services.coordinator.execution.executor import Result, Resumed
from marless.services.coordinator.execution.interruptions import Steps
from marless.services.coordinator.execution.planning import Planner, RoundPlan
from marless.services.coordinator.execution.pools import JobContext, Update
from marless.services.coordinator.execution.recording import RoundRecorder
from marless.services.coordinator.execution.recovery import Recovery
from marless.services.coordinator.execution.reservations import JobReservations
from marless.services.coordinator.state.pending_rollouts import PendingRollouts
from marless.services.coordinator.state.status import PendingRollout


class RoundCommands:
    """The rounds of one job."""

    def __init__(
        self,
        context: JobContext,
        schedule: Schedule[Rounds],
        *,
        recovery: Recovery,
        planner: Planner,
        steps: Steps,
        recorder: RoundRecorder,
        rolled_out: PendingRollouts,
        reservations: JobReservations,
    ) -> None:
        self._id, self._job, self._pools = context.job_id, context.job, context.pools
        self._schedule = schedule
        self._recovery = recovery
        self._planner = planner
        self._steps = steps
        self._recorder = recorder
        self._journal, self._timing = recorder.journal, recorder.timing
        self._rolled_out, self._lanes = rolled_out, rolled_out.lanes
        self._reservations = reservations

    async def resume(self) -> Resumed[Rounds]:
        """Go on after the recorded rounds, and those that are rolled out."""
        events, rounds = list[ScheduleEvent](), self._journal.rounds
        if (last := self.last_round()) is not None:
            events.append(ScheduleEvent("last", last))
        if rounds:
            events.append(ScheduleEvent("version", rounds - 1))
        events += [ScheduleEvent("rollout", each) for each in sorted(self._rolled_out.rounds)]
        state = after(self._schedule, self._job.spec.actors.count, events).state
        return Resumed(state, self._schedule.under_way(state), 0)

    def last_round(self) -> int | None:
        """Follows from `stop`: what was sampled ahead counts, too."""
        rolled_out, stop = self._rolled_out, self._job.spec.stop
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
                return await self._roll_out(round_, plan if clock == plan.round else self._planner.again())
            case Train():
                await self._train(plan)
                return None
        raise InternalError(f"{command} is no command of a schedule that trains in rounds")

    def happened(self, event: ScheduleEvent, result: Result, step: Step[Rounds]) -> None:
        """A round begins with the end of the one before, if its rollout began beside that."""
        if event.kind == "version" and self._rolled_out.actors(event.number + 1):
            self._timing.begin(event.number + 1)

    def waiting(self, plan: RoundPlan) -> AbstractAsyncContextManager[None]:
        """A round's commands have steps of their own."""
        return nullcontext()

    def in_flight(self, state: Rounds) -> int:
        """Nothing can be lost: a command that fails is repeated after a recovery."""
        return 0

    def recorded(self, round_: int) -> bool:
        return self._journal.rounds > round_

    @property
    def evaluating(self) -> int | None:
        """None: an evaluation beside an update ends with its round."""
        return None

    async def stop(self) -> None:
        """Nothing runs beside the commands."""

    async def _roll_out(self, round_: int, plan: RoundPlan) -> PendingRollout:
        """Run the actors of a round by this plan, and write the outcome to pending.json before its update."""
        epoch = self._recovery.epoch
        self._rolled_out.begin(round_, plan.actors)
        waited = await self._reservations.make_sure(round_, plan.actors, epoch)
        if round_ == self._journal.rounds:  # no earlier round is being trained: the job waits for these actors
            if waited:
                self._timing.interrupted()
            self._timing.begin(round_)
        else:
            await self._lanes.publish(epoch, round_ - 1)  # where workers begin that did not run this lane before
        lanes = self._rolled_out.lanes_before(round_)
        async with self._steps.step(round_, "actors sample"):
            rollout = await self._pools.train(
                self._id,
                self._job,
                round_,
                actors=plan.actors,
                groups=plan.groups,
                versions=plan.versions,
                lanes=lanes,
                epoch=epoch,
            )
        self._lanes.put(round_, rollout.carries)
        pending = PendingRollout(
            round=round_,
            rollout_s=self._timing.waited_s(round_),
            env_steps=rollout.env_steps,
            returns=rollout.returns,
            invocations=rollout.invocations,
            lanes=recording.left(lanes, rollout.lanes),
            broken_episodes=rollout.broken_episodes,
            actors=plan.actors,
        )
        self._rolled_out.put(pending)
        return pending

    async def _train(self, plan: RoundPlan) -> None:
        """Train the round of this plan, run the evaluations that are due, and append the record durably."""
        recorder, epoch, pending = self._recorder, self._recovery.epoch, self._rolled_out.of(plan.round)
        before = await recorder.before()
        times, updating = self._timing.present(pending.rollout_s), Stopwatch.start()
        async with recorder.evaluations.during_update(before, epoch) as evaluating:
            async with self._steps.step(plan.round, "learners update"):
                update, machines = await both(self._update(plan, pending), recorder.machines.look())
            self._reservations.keep(plan.round + 1, update.room)
            update_s = updating.seconds
            earlier, earlier_s = await recorder.evaluated(plan.round, evaluating)
        # Recorded, so that a rollout that began beside this update has as many actors when it is repeated after a kill.
        ahead = self._rolled_out.actors(plan.round + 1)
        record = recording.trained(self._id, plan, pending, update, times=times, update_s=update_s, ahead=ahead)
        record = recording.with_earlier(record, before, earlier)
        await recorder.record(record, machines, times=times, waited_s=earlier_s, epoch=epoch)

    async def _update(self, plan: RoundPlan, pending: PendingRollout) -> Update:
        """Update the policies; meanwhile publish carries, sync pending.json to disk and pre-warm the next actors."""
        self._reservations.workers.expect(plan.actors)
        # Awaited below in any case: a thread that syncs the file must not outlive this job's hold of its folder.
        syncing = asyncio.create_task(to_the_end(self._recorder.catch_up))
        try:
            epoch = self._recovery.epoch
            update = self._pools.update(
                self._id,
                round_=plan.round,
                epoch=epoch,
                env_steps=plan.env_steps,
                actors=pending.actors,
                groups=plan.groups,
                versions=plan.versions,
                measure=self._planner.measure(pending.returns),
            )
            return (await both(update, self._lanes.publish(epoch, plan.round)))[0]
        except StaleError:
            self._rolled_out.lost()
            raise
        finally:
            await syncing
