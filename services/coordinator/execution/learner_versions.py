"""Has the learner of an asynchronous job make a version by itself: its algorithm's usual update, from some rollouts.

For algorithms whose nets take no steps elsewhere (`stellaris_config.makes_versions`). The next version exists before
its event has happened. So the events that have led to the update are in pending.json before the learner pool is asked:
a coordinator that takes the job over asks for the same update, and the pool or the store answers with what is there.
"""

from __future__ import annotations

from collections.abc import Callable

from marless.core.errors import ConflictError, StaleError
from marless.jobs.schedules.stellaris import Learn
from marless.rpc.concurrency import both, to_the_end
from services.coordinator.execution.parts import Parts
from services.coordinator.execution.planning import RoundPlan
from services.coordinator.execution.pools import GradientResult


async def make_version(
    parts: Parts, command: Learn, plan: RoundPlan, *, oldest: int, keep: int, meanwhile: Callable[[], None]
) -> GradientResult | None:
    """Have the version of this plan's round made; None if trajectories are gone, and nothing is made of the others.

    Args:
        parts: Of the job.
        command: Which rollouts it is made from.
        plan: Of the round.
        oldest: No rollout before this one is needed any more.
        keep: Newest versions of each policy that are kept.
        meanwhile: Runs in a thread while it is made.

    Raises StaleError if a version of this round has been made from other rollouts: then the job goes back to its
    newest checkpoint.
    """
    await parts.flusher.done()  # the record before
    update = parts.pools.update(
        parts.job_id,
        round_=plan.round,
        epoch=parts.recovery.epoch,
        env_steps=plan.env_steps,
        groups=plan.groups,
        versions=plan.versions,
        measure=parts.planner.measure_at(plan.round),
        rollouts=command.rollouts,
        oldest=oldest,
        keep=keep,
    )
    try:
        made, _ = await both(update, to_the_end(meanwhile))
    except StaleError:
        return None
    except ConflictError as error:
        parts.recovery.go_back()
        raise StaleError(f"{error}; the job goes back to its newest checkpoint") from error
    return GradientResult(
        parts={},
        metrics=made.metrics,
        invocations=made.invocations,
        distances=made.distances,
        versions=made.versions,
    )
