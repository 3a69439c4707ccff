"""The greedy evaluations of a job: beside the update of the next round, or at the end of the last one.

The policies that every k-th round publishes are evaluated while the learners update them for the next round, because
the actors have nothing to do then. So an evaluation delays no rollout, and a round only if it takes longer than the
update. The record of that next round contains the result (`RoundRecord.earlier_evaluation`). A last round evaluates its
own policies after its update (`RoundRecord.evaluation`).

The random baseline of a job: the returns of a policy that acts at random, measured once, concurrently with training.

The actor pool runs the episodes in batches on its background worker until one of the bounds in `evaluation` is
reached; batches that are left when training ends run on a worker of normal priority. Batches and their seeds follow
from the job's spec, so that a faster machine gets further in the same sequence when the time limit ends it. Training
does not wait for the baseline, and no decision of a job depends on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from marless.core.errors import MarlessError, UnavailableError
from marless.core.group import Group
from marless.jobs.job import PreparedJob
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.base import is_due
from marless.learning.data.returns import EpisodeReturns, EpisodeSums, PlayLimits, batches, returns_of
from marless.learning.envs.registry import one_by_one
from marless.rpc.concurrency import delays, pause_s
from marless.services.coordinator.execution.interruptions import PASSING
from marless.services.coordinator.execution.pools import Played, Pools, Rollout
from marless.services.coordinator.state.job_log import JobLog


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


TOLD_EVERY_S = 1.0
MOST_FAILURES = 3
"""Attempts of one batch whose worker did not start or died; after the last one the baseline is given up."""


def without_an_end(limit_s: float | None) -> str:
    """Why an evaluation has no result, for logs."""
    return (
        f"no episode ended within evaluation.limit_s = {limit_s or 0:g} s; training goes on without it; end episodes "
        "by a time limit in the environment, or raise evaluation.limit_s if they take longer"
    )


class Baseline:
    """Measures the baseline of one job; calls `progressed` with the returns so far, at most once a second."""

    def __init__(
        self, *, job_id: str, job: PreparedJob, pools: Pools, log: JobLog, progressed: Callable[[EpisodeReturns], None]
    ) -> None:
        self._id = job_id
        self._job = job
        self._pools = pools
        self._log = log
        self._progressed = progressed
        self._played: list[EpisodeSums] = []
        self._measuring: asyncio.Task[None] | None = None
        self._trained = asyncio.Event()
        self._taken = False
        self._told_s = 0.0
        """When `progressed` was last called, by the monotonic clock."""

    def start(self) -> None:
        """Start to measure in a task of its own."""
        self._measuring = asyncio.create_task(self._measure())

    @property
    def measuring(self) -> bool:
        """True while the measurement is running."""
        return self._measuring is not None and not self._measuring.done()

    def measured(self) -> EpisodeReturns | None:
        """The result, handed out once: None before the measurement is done, and from the second call on."""
        if self._taken or self._measuring is None or not self._measuring.done():
            return None
        self._taken = True
        self._measuring.result()  # raises what a defect raised
        return returns_of(self._played)

    async def wait(self, cancelled: asyncio.Event) -> None:
        """Wait for the rest of the measurement after training, for `evaluation.limit_s` at most or until cancelled."""
        assert self._measuring is not None  # started
        self._trained.set()
        # Told at once, whenever that was last done: from now on the job waits for this alone.
        self._told_s = -TOLD_EVERY_S
        self._tell()
        asked = asyncio.create_task(cancelled.wait())
        try:
            await asyncio.wait(
                [self._measuring, asked],
                timeout=self._job.spec.evaluation.limit_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            asked.cancel()

    async def stop(self) -> EpisodeReturns | None:
        """Stop measuring; returns what was measured, unless `measured` has handed it out. Calling it twice is safe."""
        if self._measuring and not self._measuring.done():
            self._measuring.cancel()
            await asyncio.wait([self._measuring])
        return None if self._taken else returns_of(self._played)

    async def _measure(self) -> None:
        spec = self._job.spec
        bounds = PlayLimits(
            episodes=spec.evaluation.random_episodes,
            limit_s=spec.evaluation.limit_s or 0.0,
            relative_error=spec.evaluation.relative_error,
        )
        sizes = batches(bounds.episodes, spec.actors.envs, one_by_one=one_by_one(spec.env.name))
        played_s, bound = 0.0, "episodes"
        try:
            for number, episodes in enumerate(sizes):
                if ended := bounds.reached(returns_of(self._played), played_s, episodes):
                    bound = ended
                    break
                played = await self._play(number, episodes)
                self._played.append(played.sums)
                played_s += played.played_s
                if not played.sums.episodes:
                    self._log.warning("baseline.given_up", why=without_an_end(spec.evaluation.limit_s))
                    bound = "time"
                    break
                self._tell()
        except MarlessError as error:
            self._log.warning("baseline.failed", error=str(error), episodes=sum(each.episodes for each in self._played))
            return
        self._note(bound, played_s)

    async def _play(self, number: int, episodes: int) -> Played:
        """Run one batch; transient errors are retried, all others are raised."""
        failures = 0
        for delay_s in delays():
            try:
                return await self._play_somewhere(number, episodes)
            except (*PASSING, UnavailableError) as trouble:
                failures += not isinstance(trouble, PASSING)
                if failures == MOST_FAILURES:
                    raise
                await asyncio.sleep(pause_s(delay_s, trouble))
        raise AssertionError("delays never end")

    async def _play_somewhere(self, number: int, episodes: int) -> Played:
        """Run a batch on the background worker while the job trains, else with normal priority, to the same result."""
        if not self._trained.is_set():
            trained = asyncio.create_task(self._trained.wait())
            playing = asyncio.create_task(self._pools.play_randomly(self._id, self._job, number, episodes))
            try:
                await asyncio.wait([trained, playing], return_when=asyncio.FIRST_COMPLETED)
                if playing.done():
                    return playing.result()
            # When training ends, the slow worker is not waited for: the batch is played again from the same seed.
            finally:
                trained.cancel()
                playing.cancel()
        return await self._pools.play_randomly(self._id, self._job, number, episodes, background=False)

    def _tell(self) -> None:
        now_s, returns = time.monotonic(), returns_of(self._played)
        if returns and now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            self._progressed(returns)

    def _note(self, bound: str, played_s: float) -> None:
        if returns := returns_of(self._played):
            self._log.info(
                "baseline.measured",
                episodes=returns.episodes,
                random_return=returns.mean,
                standard_error=returns.standard_error,
                ended_by=bound,
                played_s=round(played_s, 3),
            )
