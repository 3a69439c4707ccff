"""Executes a schedule's rollouts: room in the learner pool, the actors of a round, and what they have left."""

from __future__ import annotations

from services.coordinator.execution import recording
from services.coordinator.execution.parts import Parts
from services.coordinator.execution.planning import RoundPlan
from services.coordinator.state.status import PendingRollout


async def roll_out(parts: Parts, round_: int, plan: RoundPlan) -> None:
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
    parts.rolled_out.put(
        PendingRollout(
            round=round_,
            rollout_s=parts.timing.waited_s(round_),
            env_steps=rollout.env_steps,
            returns=rollout.returns,
            invocations=rollout.invocations,
            lanes=recording.left(lanes, rollout.lanes),
            actors=plan.actors,
        )
    )
