"""The greedy evaluations of a job: beside the update of the next round, or at the end of the last one.

The policies that every k-th round publishes are evaluated while the learners update them for the next round, because
the actors have nothing to do then. So an evaluation delays no rollout, and a round only if it takes longer than the
update. The record of that next round contains the result (`RoundRecord.earlier_evaluation`). A last round evaluates its
own policies after its update (`RoundRecord.evaluation`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from marless.core.group import Group
from marless.jobs.job import PreparedJob
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.evaluating import is_due
from services.coordinator.execution.baseline import without_an_end
from services.coordinator.execution.pools import Pools, Rollout
from services.coordinator.state.job_log import JobLog


def outstanding(every: int, last: RoundRecord | None) -> bool:
    """True if the policies that this round published are to be evaluated beside the next update.

    It depends on the record alone, so that a coordinator that takes over a job evaluates as one that was not stopped.

    Args:
        every: The job's `evaluation.every`.
        last: The newest recorded round; None if there is none.
    """
    return last is not None and is_due(every, last.round + 1) and last.evaluation is None


class Evaluations:
    """Evaluates the policies of one job. Episodes depend on the job's spec and the policies' round, not on the time."""

    def __init__(self, *, job_id: str, job: PreparedJob, pools: Pools, log: JobLog) -> None:
        self._log = log
        self._id = job_id
        self._job = job
        self._pools = pools

    async def of(self, record: RoundRecord, epoch: int) -> Rollout:
        """Evaluate the policies that this round published; raises the errors of `Pools.evaluate`."""
        groups = [Group(group.policy, group.agents) for group in record.groups]
        found = await self._pools.evaluate(self._id, self._job, record.round + 1, groups, record.versions, epoch=epoch)
        if found.returns is None:
            limit_s = self._job.spec.evaluation.limit_s
            self._log.warning("evaluation.given_up", round=record.round + 1, why=without_an_end(limit_s))
        return found

    @asynccontextmanager
    async def during_update(self, last: RoundRecord | None, epoch: int) -> AsyncIterator[asyncio.Task[Rollout] | None]:
        """While the block runs, evaluate the policies of the last round, if that is outstanding; else yields None.

        An evaluation that the block does not await to its end is stopped when the block ends.
        """
        if last is None or not outstanding(self._job.spec.evaluation.every, last):
            yield None
            return
        evaluating = asyncio.create_task(self.of(last, epoch))
        try:
            yield evaluating
        finally:
            evaluating.cancel()
            await asyncio.gather(evaluating, return_exceptions=True)
