"""Executes a schedule's updates: learners, evaluations beside and after them, and the record of the round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from marless.core.stopwatch import Stopwatch
from marless.errors import CancelledJobError, StaleError
from marless.job import Job
from marless.record import RoundRecord
from marless.rpc.concurrency import both, to_the_end
from services.coordinator.execution import recording
from services.coordinator.execution.evaluations import Evaluations
from services.coordinator.execution.machines import Machines
from services.coordinator.execution.planning import Planner, RoundPlan
from services.coordinator.execution.pools import Pools, Rollout, Update
from services.coordinator.execution.prewarming import Warming
from services.coordinator.execution.recovery import Recovery
from services.coordinator.execution.reservations import Reserving
from services.coordinator.execution.steps import Steps
from services.coordinator.execution.timing import Timing
from services.coordinator.state.costs import Costs
from services.coordinator.state.journal import Journal
from services.coordinator.state.lanes import Lanes
from services.coordinator.state.pending_rollouts import RolledOut
from services.coordinator.state.run_folder import RunFolder
from services.coordinator.state.status import Pending


@dataclass(frozen=True, kw_only=True)
class Training:
    """The updates of one job."""

    job_id: str
    job: Job
    folder: RunFolder
    pools: Pools
    journal: Journal
    costs: Costs
    planner: Planner
    recovery: Recovery
    room: Reserving
    lanes: Lanes
    rolled_out: RolledOut
    evaluations: Evaluations
    machines: Machines
    warming: Warming
    timing: Timing
    steps: Steps
    is_last: Callable[[RoundRecord], bool]
    """Whether a round that is not recorded yet may be the job's last: then it evaluates its own policies."""

    async def run(self, plan: RoundPlan) -> None:
        """Train the round of this plan, run the evaluations that are due, and append the record durably."""
        pending = self.rolled_out.of(plan.round)
        times, updating, before = self.timing.present(pending.rollout_s), Stopwatch.start(), self.journal.last
        async with self.evaluations.beside(before, self.recovery.epoch) as evaluating:
            async with self.steps.step(plan.round, "learners update"):
                update, machines = await both(self._update(plan, pending), self.machines.look())
            self.room.keep(plan.round + 1, update.room)
            update_s = updating.seconds
            earlier, earlier_s = await self._evaluated(plan, evaluating)
        ahead = self.rolled_out.actors(plan.round + 1)
        record = recording.trained(self.job_id, plan, pending, update, times=times, update_s=update_s, ahead=ahead)
        record = recording.with_earlier(record, before, earlier)
        own_policies = self.evaluations.of(record, self.recovery.epoch) if self.is_last(record) else None
        own, own_s = await self._evaluated(plan, own_policies)
        changes = self.machines.changes(machines)
        record = recording.finished(record, own, changes, times=times, evaluation_s=earlier_s + own_s)
        await to_the_end(self.journal.append, record)
        self.timing.recorded(record)

    async def _update(self, plan: RoundPlan, pending: Pending) -> Update:
        """Update the policies; meanwhile publish carries, sync pending.json to disk and pre-warm the next actors."""
        self.warming.expect(plan.actors)
        syncing = asyncio.create_task(to_the_end(self._beside_the_update))
        try:
            epoch = self.recovery.epoch
            update = self.pools.update(
                self.job_id,
                round_=plan.round,
                epoch=epoch,
                env_steps=plan.env_steps,
                actors=pending.actors or plan.actors,
                groups=plan.groups,
                versions=plan.versions,
                measure=self.planner.measure(pending.returns),
            )
            return (await both(update, self.lanes.publish(epoch, plan.round)))[0]
        except StaleError:
            self.rolled_out.lost()
            raise
        finally:
            await syncing

    def _beside_the_update(self) -> None:
        self.folder.sync_pending()
        self.costs.catch_up()

    async def _evaluated(self, plan: RoundPlan, evaluating: Awaitable[Rollout] | None) -> tuple[Rollout | None, float]:
        """Wait for an evaluation, if there is one; returns it, None if the job is cancelled first, and the seconds."""
        if evaluating is None:
            return None, 0.0
        evaluation, waiting = None, Stopwatch.start()
        with suppress(CancelledJobError):
            async with self.steps.step(plan.round, "actors evaluate"):
                evaluation = await evaluating
        return evaluation, waiting.seconds
