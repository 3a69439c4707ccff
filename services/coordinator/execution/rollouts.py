"""Executes a schedule's rollouts: room in the learner pool, the actors of a round, and what they have left."""

from __future__ import annotations

from dataclasses import dataclass

from marless.job import Job
from services.coordinator.execution import recording
from services.coordinator.execution.planning import RoundPlan
from services.coordinator.execution.pools import Pools
from services.coordinator.execution.recovery import Recovery
from services.coordinator.execution.reservations import Reserving
from services.coordinator.execution.steps import Steps
from services.coordinator.execution.timing import Timing
from services.coordinator.state.journal import Journal
from services.coordinator.state.lanes import Lanes
from services.coordinator.state.pending_rollouts import RolledOut
from services.coordinator.state.status import Pending


@dataclass(frozen=True, kw_only=True)
class RollingOut:
    """The rollouts of one job."""

    job_id: str
    job: Job
    pools: Pools
    recovery: Recovery
    journal: Journal
    room: Reserving
    lanes: Lanes
    rolled_out: RolledOut
    timing: Timing
    steps: Steps

    async def run(self, round_: int, plan: RoundPlan) -> None:
        """Run the actors of a round by this plan, and write the outcome to pending.json before its update."""
        epoch, journal = self.recovery.epoch, self.journal
        self.rolled_out.begin(round_, plan.actors)
        waited = await self.room.make_sure(round_, plan.actors, epoch)
        if round_ == journal.rounds:  # no earlier round is being trained: the job waits for these actors
            if waited:
                self.timing.interrupted()
            self.timing.begin(round_)
        else:
            await self.lanes.publish(epoch, round_ - 1)  # where workers begin that did not run this lane before
        lanes = self.rolled_out.lanes_before(round_)
        async with self.steps.step(round_, "actors sample"):
            rollout = await self.pools.train(
                *(self.job_id, self.job, round_, plan.actors, plan.groups, plan.versions, lanes), epoch=epoch
            )
        self.lanes.put(round_, rollout.carries)
        self.rolled_out.put(
            Pending(
                round=round_,
                rollout_s=self.timing.waited_s(round_),
                env_steps=rollout.env_steps,
                returns=rollout.returns,
                invocations=rollout.invocations,
                lanes=recording.left(lanes, rollout.lanes),
                actors=plan.actors,
            )
        )
