"""The round loop of one job: rollout, update (and evaluation), record, decisions, until a stop rule is met."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from marless.checkpoint import Progress
from marless.errors import (
    CancelledJobError,
    FencedError,
    MarlessError,
    StaleError,
    UnavailableError,
)
from marless.job import Job
from marless.log import structlog
from marless.record import Returns, RoundRecord
from marless.rpc.concurrency import both, to_the_end
from marless.stopwatch import Stopwatch
from services.coordinator import recording, stopping
from services.coordinator.baseline import Baseline
from services.coordinator.cancelling import CANCELLED, Cancellation
from services.coordinator.costs import Costs
from services.coordinator.evaluations import Evaluations
from services.coordinator.journal import Journal
from services.coordinator.lanes import Lanes
from services.coordinator.logs import JobLog
from services.coordinator.machines import Machines
from services.coordinator.patience import PASSING, Patience, doing
from services.coordinator.planning import Plan, Planner
from services.coordinator.pools import Pools, Rollout, Update
from services.coordinator.recovery import Recovery
from services.coordinator.reserving import SHOWN_AFTER_S, Reserving
from services.coordinator.run_folder import RunFolder
from services.coordinator.settling import Settling
from services.coordinator.status import JobStatus, Pending
from services.coordinator.timing import Timing
from services.coordinator.warming import Warming

PATIENCE_S = 120.0
MAX_FENCED = 3
DETAIL_FRAMES = 8
_TRAINED = "training is done"
_BASELINE = "; random baseline so far: "
_log = structlog.get_logger("coordinator")


class JobRun:
    """Runs one job from the state of its folder to its end; calls `changed` at each new status or recorded round.

    The folder must be owned, and is released when `run` ends. Several runs of one folder may follow one another.
    """

    def __init__(
        self,
        *,
        job_id: str,
        job: Job,
        folder: RunFolder,
        pools: Pools,
        status: JobStatus,
        log: JobLog,
        changed: Callable[[RoundRecord | None], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._id = job_id
        self._job = job
        self._folder = folder
        self._pools = pools
        self._log = log
        self._changed = changed
        self._costs = Costs(job.spec, folder)
        self._journal = Journal(folder, self._costs)
        self._planner = Planner(job, self._journal)
        self._warming = Warming(pools, job_id, wanted=job.spec.functions.prewarm)
        self._recovery = Recovery(job_id=job_id, job=job, folder=folder, pools=pools, journal=self._journal, log=log)
        self._cancellation = Cancellation()
        self._cancelled = self._cancellation.asked
        self._patience = Patience(patience_s, self._cancelled)
        self._room = Reserving(job_id=job_id, job=job, pools=pools, cancelled=self._cancelled, show=self._show)
        self._evaluations = Evaluations(job_id=job_id, job=job, pools=pools)
        self._baseline = Baseline(job_id=job_id, job=job, pools=pools, log=log, progressed=self._show_baseline)
        self._machines = Machines(job_id, pools)
        self._settling = Settling(folder)
        self._fenced = 0
        self._timing = Timing()
        self._pending: Pending | None = None
        self._lanes = Lanes(job_id, pools.store)
        self.status = status
        self.detail = ""
        """The end of a traceback, if the job failed by an internal error."""

    @property
    def in_trouble(self) -> bool:
        """True while it waits for a service or retries a round."""
        return self._patience.waiting

    def cancel(self) -> None:
        """Ask the job to stop after the present round, which is abandoned if it takes longer than a grace period.

        The request is on the disk when this returns.
        """
        if not self.status.ended and not self._cancelled.is_set():
            self._cancellation.ask()
            self._set(cancelling=True)

    async def run(self) -> None:
        """Run the job to its end; a failure of the job raises nothing and ends it FAILED.

        If this task is cancelled, or another coordinator takes the job over, it exits without writing a terminal
        status, so that the next owner continues the job.
        """
        try:
            self._folder.keep_beating()
            await self._end(*await self._live())
        except FencedError as error:
            _log.warning("job.taken_over", job=self._id, error=str(error))
        finally:
            self._warming.stop()
            await self._baseline.stop()
            await self._settling.stop()
            self._folder.release()

    async def _live(self) -> tuple[str, str]:
        """Run all rounds; returns the job's final state and reason. Raises FencedError if the job was taken over."""
        try:
            await self._begin()
            ending = await self._train()
            if self._baseline.measuring:
                self._show(_TRAINED)
                await self._baseline.wait(self._cancelled)
            self._take_baseline()
        except CancelledJobError:
            return "CANCELLED", CANCELLED
        except FencedError:
            self._folder.check_owned()
            return "FAILED", f"another coordinator publishes under the name {self._id!r} in the same store"
        except MarlessError as error:
            self.detail = error.detail
            return "FAILED", str(error)
        except Exception as error:  # noqa: BLE001  # a defect must end the job FAILED, with its reason, not hang it
            _log.error("job.failed", job=self._id, exc_info=error)
            self.detail = "".join(traceback.format_exception(error)[-DETAIL_FRAMES:])
            return "FAILED", f"internal error: {type(error).__name__}: {error}"
        return ("SUCCEEDED", ending) if ending else ("CANCELLED", CANCELLED)

    async def _begin(self) -> None:
        """Read the folder, and start the baseline if it is not measured yet."""
        await to_the_end(self._folder.take_over)
        await asyncio.to_thread(self._journal.read)
        self._pending = await asyncio.to_thread(self._folder.read_pending, self._journal.rounds)
        if self.status.random is None or self.status.random_cut:
            self._baseline.start()
        if self.status.cancelling:
            self._cancellation.ask()
        if self.status.state == "RUNNING":
            self._set(resumes=self.status.resumes + 1, reason=f"goes on after {self._journal.rounds} rounds")
            self._log.info("job.continued", rounds=self._journal.rounds, rolled_out=self._pending is not None)

    async def _train(self) -> str:
        """Run rounds until a stop rule is met; returns it as a sentence, "" if the job was cancelled."""
        plan: Plan | None = None
        while True:
            try:
                plan = plan or await self._stand()
                self._take_baseline()
                await self._checkpoint(plan.ending)
                if plan.ending or self._cancelled.is_set():
                    return plan.ending
                plan = await self._round(plan)
                self._settle()
            except PASSING as trouble:
                plan = None
                self._timing.interrupted()
                await self._bear(trouble)

    async def _bear(self, trouble: MarlessError) -> None:
        """Wait before a retry; raises `trouble` if it has lasted too long."""
        self._room.kept = 0
        self._folder.check_owned()
        if isinstance(trouble, FencedError):
            self._recovery.epoch, self._fenced = 0, self._fenced + 1
            if self._fenced > MAX_FENCED:
                raise trouble
        self._show(doing(trouble))
        await self._patience.bear(trouble)

    def _settle(self) -> None:
        """Reset the backoff after a successful round."""
        if self.status.reason != "training":
            self._show("training")
        self._patience.over()

    async def _stand(self) -> Plan:
        """Recover the job, and plan its next round."""
        await self._settling.done()
        last = self._journal.last
        self._warming.expect(last.actors if last else self._job.spec.actors.count)
        if not self._patience.waiting:
            self._show("starting learners")
        async with self._cancellation.abandoning():
            versions = await self._recovery.stand(rolled_out=self._pending is not None)
            if self._pending and not await self._lanes.exist(self._pending.lanes):
                self._pending = None
        if self.status.state != "RUNNING":
            self._set(state="RUNNING", reason="training")
        elif not self._patience.waiting:
            self._show("training")
        return self._planner.plan(versions, stopping.ending(self._job.spec.stop, self._journal))

    async def _round(self, plan: Plan) -> Plan:
        if self._pending is None or self._pending.round != plan.round:
            self._pending = await self._roll_out(plan)
        await self._settling.done()
        pending, times = self._pending, self._timing.present(self._pending.rollout_s)
        updating, before = Stopwatch.start(), self._journal.last
        async with self._evaluations.beside(before, self._recovery.epoch) as evaluating:
            async with self._step(plan, "learners update"):
                update, machines = await both(self._update(plan, pending), self._machines.look())
            self._room.kept, update_s = update.room, updating.seconds
            earlier, earlier_s = await self._evaluated(plan, evaluating)
        record = recording.trained(self._id, plan, pending, update, times=times, update_s=update_s)
        record = recording.with_earlier(record, before, earlier)
        own_policies = self._evaluations.of(record, self._recovery.epoch) if self._is_last(record) else None
        own, own_s = await self._evaluated(plan, own_policies)
        changes = self._machines.changes(machines)
        record = recording.finished(record, own, changes, times=times, evaluation_s=earlier_s + own_s)
        await to_the_end(self._journal.append, record)
        self._pending = None
        self._timing.recorded(record)
        for event, facts in recording.changes(before, record):
            self._log.info(event, **facts)
        self._settling.begin(partial(self._changed, record))
        return self._planner.plan(record.versions, stopping.ending(self._job.spec.stop, self._journal))

    def _take_baseline(self) -> None:
        """Write the random baseline into the status once it is measured."""
        if measured := self._baseline.measured():
            self._set(random=measured, random_cut=False)

    def _show_baseline(self, played: Returns) -> None:
        """Show the baseline so far, but only before the first round and after the last one."""
        present = self.status.reason.partition(_BASELINE)[0]
        if not self._journal.rounds or present == _TRAINED:
            error = f" ± {played.standard_error:.2f}" if played.episodes > 1 else ""
            self._show(f"{present}{_BASELINE}{played.mean:.2f}{error}, {played.episodes} episodes")

    def _beside_the_update(self) -> None:
        self._folder.sync_pending()
        self._costs.catch_up()

    def _is_last(self, record: RoundRecord) -> bool:
        """True if this round, which is not recorded yet, may be the job's last: then it evaluates its own policies."""
        return self._cancelled.is_set() or stopping.may_end(self._job.spec.stop, self._journal, record)

    async def _roll_out(self, plan: Plan) -> Pending:
        """Run the round's actors, and write the outcome to pending.json before the update."""
        if await self._room.make_sure(plan.round, plan.actors, self._recovery.epoch):
            self._timing.interrupted()
        times = self._timing.begin(plan.round)
        async with self._step(plan, "actors sample"):
            rollout = await self._pools.train(
                *(self._id, self._job, plan.round, plan.actors, plan.groups, plan.versions, plan.lanes),
                epoch=self._recovery.epoch,
            )
        self._lanes.returned = rollout.carries
        pending = Pending(
            round=plan.round,
            rollout_s=times.watch.seconds,
            env_steps=rollout.env_steps,
            returns=rollout.returns,
            invocations=rollout.invocations,
            lanes=recording.left(plan.lanes, rollout.lanes),
        )
        self._folder.write_pending(pending)
        return pending

    @asynccontextmanager
    async def _step(self, plan: Plan, doing: str) -> AsyncIterator[None]:
        """Wrap a step of a round: show it if it takes longer than SHOWN_AFTER_S, abandon it if the job is cancelled."""
        late = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show, f"round {plan.round + 1}: {doing}")
        try:
            async with self._cancellation.abandoning():
                yield
        finally:
            late.cancel()

    async def _update(self, plan: Plan, pending: Pending) -> Update:
        """Update the policies; meanwhile publish carries, sync pending.json to disk and pre-warm the next actors."""
        self._warming.expect(plan.actors)
        syncing = asyncio.create_task(to_the_end(self._beside_the_update))
        try:
            epoch = self._recovery.epoch
            update = self._pools.update(
                self._id,
                round_=plan.round,
                epoch=epoch,
                env_steps=plan.env_steps,
                actors=plan.actors,
                groups=plan.groups,
                versions=plan.versions,
                measure=self._planner.measure(pending.returns),
            )
            return (await both(update, self._lanes.publish(epoch, plan.round)))[0]
        except StaleError:
            self._pending = None  # the learner pool has lost the trajectories, as after a restart
            raise
        finally:
            await syncing

    async def _evaluated(self, plan: Plan, evaluating: Awaitable[Rollout] | None) -> tuple[Rollout | None, float]:
        """Wait for an evaluation, if there is one; returns it, None if the job is cancelled first, and the seconds."""
        if evaluating is None:
            return None, 0.0
        evaluation, waiting = None, Stopwatch.start()
        with suppress(CancelledJobError):
            async with self._step(plan, "actors evaluate"):
                evaluation = await evaluating
        return evaluation, waiting.seconds

    async def _checkpoint(self, ending: str, *, final: bool = False) -> None:
        """Save the versions of the newest round if `checkpoint.every` is due, and at the end of the job."""
        spec, last = self._job.spec.checkpoint, self._journal.last
        final = final or bool(ending) or self._cancelled.is_set()
        if last is None or not (final or (spec.every and (last.round + 1) % spec.every == 0)):
            return
        progress = Progress(
            round=last.round + 1,
            env_steps=last.env_steps,
            seed=self._job.spec.seed,
            actors=last.actors,
            algorithm=self._job.spec.algorithm.name,
            groups={group.policy: group.agents for group in last.groups},
        )
        await self._recovery.snapshots.save(progress, last.versions, last.lanes, spec.keep)
        self._settling.begin()

    async def _end(self, state: str, reason: str) -> None:
        if self._fenced > MAX_FENCED:
            problem = ""  # the versions in the store are another coordinator's
        else:
            problem = await self._put_away()
        if problem:
            state, reason = ("FAILED", problem) if state == "SUCCEEDED" else (state, reason)
        if unfinished := await self._baseline.stop():
            self.status = replace(self.status, random=unfinished, random_cut=True)
        await self._machines.at_the_end(self._folder)
        cost_usd = await asyncio.to_thread(self._costs.total_usd)
        if self._costs.problem:
            self._log.warning("job.cost_unknown", problem=self._costs.problem)
        ended = replace(self.status, state=state, reason=reason, cancelling=False, ended_s=time.time())
        summary = recording.summary(ended, self._journal, self._timing, self._folder.path, cost_usd)
        await self._finish(replace(ended, summary_json=summary.to_json()))

    async def _finish(self, status: JobStatus) -> None:
        """Write the final status, and notify watchers once it is durable, or cannot be written (`LiveJob.saved`)."""
        self.status = status
        try:
            self._folder.write_status(status)
            await self._settling.all()
        except FencedError:
            raise
        except MarlessError as error:
            self._log.error("job.status_not_saved", error=str(error))
        self._changed(None)

    async def _put_away(self) -> str:
        """Save the last versions and drop the job from the other services; returns why saving failed, "" if it did not.

        If saving failed, the versions stay in the store and the replay buffers in the learner pool, for a resume.
        """
        problem, forget = "", self._recovery.end
        try:
            await self._checkpoint("", final=True)
            await to_the_end(self._folder.drop_pending)
            await self._settling.all()
        except FencedError:
            raise
        except MarlessError as error:
            self._log.error("job.checkpoint_failed", error=str(error))
            problem = f"trained, but its last checkpoint could not be saved: {error}"
            forget = self._recovery.leave
        try:
            await forget()
        except FencedError:
            raise
        except MarlessError as error:
            self._log.warning("job.not_forgotten", error=str(error))
        return problem

    def _show(self, reason: str) -> None:
        """Set the status's reason for watchers, without writing it to disk."""
        self.status = replace(self.status, reason=reason)
        self._changed(None)

    def _set(self, **changes: Any) -> None:  # Any: fields of several types
        """Write a new status to disk and notify watchers, even if the write fails."""
        self.status = replace(self.status, **changes)
        try:
            self._folder.write_status(self.status)
        except UnavailableError as error:
            self._log.error("job.status_not_saved", error=str(error))
        self._changed(None)
