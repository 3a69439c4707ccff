"""The life of one job: it executes what its schedule says is due, round after round, until a stop rule is met."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

from marless.core.errors import CancelledJobError, FencedError, MarlessError, UnavailableError, told
from marless.core.group import Versions
from marless.core.log import structlog
from marless.jobs.job import PreparedJob
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.base import is_due
from marless.jobs.schedules.overlapping import OverlappingConfig
from marless.learning.data.returns import EpisodeReturns, return_text
from marless.rpc.concurrency import to_the_end
from marless.rpc.tracing import within
from marless.services.coordinator.execution import recording
from marless.services.coordinator.execution.evaluations import Baseline
from marless.services.coordinator.execution.executor import Executor
from marless.services.coordinator.execution.interruptions import CANCELLED, PASSING, Backoff, Cancellation, Steps, doing
from marless.services.coordinator.execution.planning import Planner, RoundPlan, ending, may_end
from marless.services.coordinator.execution.pools import JobContext, Pools
from marless.services.coordinator.execution.recording import RoundRecorder
from marless.services.coordinator.execution.recovery import Recovery, SavedEpoch
from marless.services.coordinator.execution.reservations import JobReservations
from marless.services.coordinator.execution.round_commands import RoundCommands
from marless.services.coordinator.execution.timing import JobTrace, Timing
from marless.services.coordinator.execution.version_commands import VersionCommands
from marless.services.coordinator.state.job_log import JobLog
from marless.services.coordinator.state.journal import Costs, Flusher, Journal
from marless.services.coordinator.state.pending_rollouts import LanePublisher, PendingRollouts
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from marless.storage.checkpoint import CheckpointProgress

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
        job: PreparedJob,
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
        self._log = log
        self._changed = changed
        self._context = JobContext(job_id, job, folder, pools, log)
        self._costs = Costs(job.spec, folder)
        self._journal = Journal(folder, self._costs, best=job.spec.checkpoint.best)
        self._planner = Planner(job, self._journal)
        self._cancellation = Cancellation()
        self._steps = Steps(self._cancellation, self._show)
        self._backoff = Backoff(patience_s, self._cancellation.asked)
        saved = SavedEpoch(status.epoch, self._save_epoch)
        self._recovery = Recovery(
            job_id=job_id, job=job, folder=folder, pools=pools, journal=self._journal, log=log, saved=saved
        )
        self._reservations = JobReservations(
            job_id=job_id, job=job, pools=pools, cancelled=self._cancellation.asked, show=self._show
        )
        self._rolled_out = PendingRollouts(folder, self._journal, LanePublisher(job_id, pools.store))
        self._flusher = Flusher(folder)
        self._timing = Timing()
        self._recorder = RoundRecorder(
            self._context,
            journal=self._journal,
            costs=self._costs,
            flusher=self._flusher,
            timing=self._timing,
            steps=self._steps,
            is_last=self._is_last,
            told=self._tell,
        )
        self._baseline = Baseline(job_id=job_id, job=job, pools=pools, log=log, progressed=self._show_baseline)
        self._fenced = 0
        self._trace = JobTrace(status)
        self.status = status
        self.detail = ""
        """The end of a traceback, if the job failed by an internal error."""

    @property
    def in_trouble(self) -> bool:
        """True while it waits for a service or retries a round."""
        return self._backoff.waiting

    def cancel(self) -> None:
        """Ask the job to stop after the present round, which is abandoned if it takes longer than a grace period.

        The request is on the disk when this returns.
        """
        if not self.status.ended and not self._cancellation.asked.is_set():
            self._cancellation.ask()
            self._set(cancelling=True)

    async def run(self) -> None:
        """Run the job to its end; a failure of the job raises nothing and ends it FAILED.

        If this task is cancelled, or another coordinator takes the job over, it exits without writing a terminal
        status, so that the next owner continues the job.
        """
        try:
            self._folder.keep_beating()
            with within(self._trace.scope):
                await self._end(*await self._live())
        except FencedError as error:
            _log.warning("job.taken_over", job=self._id, error=str(error))
        finally:
            # The folder is released last: what may still write into it ends before another coordinator can own it.
            self._reservations.workers.stop()
            await self._baseline.stop()
            await self._flusher.stop()
            self._folder.release()

    async def _live(self) -> tuple[str, str]:
        """Run all rounds; returns the job's final state and reason. Raises FencedError if the job was taken over."""
        try:
            await self._begin()
            ending = await self._train()
            if self._baseline.measuring:
                self._show(_TRAINED)
                await self._baseline.wait(self._cancellation.asked)
            self._take_baseline()
        except CancelledJobError:
            return "CANCELLED", CANCELLED
        except FencedError:
            # Raises again if another coordinator owns the folder. If it is still ours, somebody who does not know the
            # folder acquires epochs under the same name.
            self._folder.check_owned()
            return "FAILED", f"another coordinator publishes under the name {self._id!r} in the same store"
        except MarlessError as error:
            self._folder.check_owned()  # else it is no failure of the job
            self.detail = error.detail
            return "FAILED", str(error)
        except Exception as error:  # noqa: BLE001  # a defect must end the job FAILED, with its reason, not hang it
            return "FAILED", self._of_defect(error)
        return ("SUCCEEDED", ending) if ending else ("CANCELLED", CANCELLED)

    async def _begin(self) -> None:
        """Read the folder, and start the baseline if it is not measured yet."""
        # First, so that nothing that is read below changes any more by the hand of an earlier owner.
        await to_the_end(self._folder.take_over)
        await asyncio.to_thread(self._journal.read)
        await self._rolled_out.read()
        if self.status.random is None or self.status.random_cut:
            self._baseline.start()
        if self.status.cancelling:
            self._cancellation.ask()
        if self.status.state == "RUNNING":
            self._set(resumes=self.status.resumes + 1, reason=f"goes on after {self._journal.rounds} rounds")
            self._log.info("job.continued", rounds=self._journal.rounds, rolled_out=bool(self._rolled_out.found))

    async def _train(self) -> str:
        """Run rounds until a stop rule is met; returns it as a sentence, "" if the job was cancelled."""
        while True:
            try:
                # Each attempt begins with a recovery, because a failure does not tell what the services still have.
                return await self._run_schedule(await self._recover())
            except PASSING as trouble:
                self._timing.interrupted()
                self._rolled_out.interrupted()
                await self._back_off(trouble)

    async def _run_schedule(self, plan: RoundPlan) -> str:
        """Do what the schedule says is due, from this plan on; returns as `_train`."""
        async with self._executor() as running:
            while True:
                self._take_baseline()
                await self._checkpoint(plan.ending, evaluating=running.evaluating)
                if plan.ending or self._cancellation.asked.is_set():
                    return plan.ending
                await running.advance(plan)
                if self.status.reason != "training":
                    self._show("training")
                self._backoff.reset()
                plan = self._planner.plan(self._journal.versions, ending(self._job.spec.stop, self._journal))

    def _executor(self) -> Executor[Any]:  # Any: each schedule has states of its own
        """What executes the job's schedule."""
        schedule, config = self._job.schedule, self._job.spec.schedule
        if isinstance(config, OverlappingConfig):
            versions = VersionCommands(
                self._context,
                schedule,
                recovery=self._recovery,
                planner=self._planner,
                steps=self._steps,
                recorder=self._recorder,
                rolled_out=self._rolled_out,
            )
            return Executor(schedule, versions, config.to_repeat)
        rounds = RoundCommands(
            self._context,
            schedule,
            recovery=self._recovery,
            planner=self._planner,
            steps=self._steps,
            recorder=self._recorder,
            rolled_out=self._rolled_out,
            reservations=self._reservations,
        )
        return Executor(schedule, rounds, ())

    def _acting(self) -> Versions:
        """The versions that act in the next round, if they are older than the newest ones."""
        if not (self._job.schedule.ahead and self._journal.rounds):
            return {}
        return self._planner.again().versions

    def _tell(self, before: RoundRecord | None) -> None:
        """Log what a recorded round has changed, and notify watchers once it is durable."""
        record = self._journal.last
        assert record is not None  # just recorded
        self._trace.recorded(record)
        for event, facts in recording.changes(before, record):
            self._log.info(event, **facts)
        self._flusher.begin(partial(self._changed, record))

    async def _back_off(self, trouble: MarlessError) -> None:
        """Wait before a retry; raises `trouble` if it has lasted too long."""
        self._reservations.release_all()
        self._folder.check_owned()
        if isinstance(trouble, FencedError):
            # A further epoch follows, but not for ever: two owners of one name would end each other's epochs in turn.
            self._recovery.epoch, self._fenced = 0, self._fenced + 1
            if self._fenced > MAX_FENCED:
                raise trouble
        self._show(doing(trouble))
        await self._backoff.wait(trouble)

    async def _recover(self) -> RoundPlan:
        """Recover the job, and plan its next round."""
        # A record that the bucket has not taken yet goes there before anything is built on it.
        await self._flusher.done()
        last = self._journal.last
        # Actor workers start meanwhile: to open the job takes as long as learner workers take to import torch.
        self._reservations.workers.expect(last.actors if last else self._job.spec.actors.count)
        if not self._backoff.waiting:
            self._show("starting learners")
        async with self._cancellation.abandoning():
            versions = await self._recovery.recover(rolled_out=bool(self._rolled_out.found), acting=self._acting())
            await self._rolled_out.drop_those_without_carries()
        if self.status.state != "RUNNING":
            self._set(state="RUNNING", reason="training", marless_version=version("marless"))
        elif not self._backoff.waiting:
            self._show("training")
        return self._planner.plan(versions, ending(self._job.spec.stop, self._journal))

    def _take_baseline(self) -> None:
        """Write the random baseline into the status once it is measured."""
        if measured := self._baseline.measured():
            self._set(random=measured, random_cut=False)

    def _show_baseline(self, played: EpisodeReturns) -> None:
        """Show the baseline so far, but only before the first round and after the last one."""
        present = self.status.reason.partition(_BASELINE)[0]
        if not self._journal.rounds or present == _TRAINED:
            measured = return_text(played.mean, played.standard_error)
            self._show(f"{present}{_BASELINE}{measured}, {played.episodes} episodes")

    def _is_last(self, record: RoundRecord) -> bool:
        """True if this round, which is not recorded yet, may be the job's last: then it evaluates its own policies."""
        return self._cancellation.asked.is_set() or may_end(self._job.spec.stop, self._journal, record)

    async def _checkpoint(self, ending: str, *, final: bool = False, evaluating: int | None = None) -> None:
        """Save the versions of the newest round if `checkpoint` asks for it, and at the end of the job.

        `evaluating` is the round whose policies are evaluated at present, if they are not those of the newest round.
        """
        spec, last = self._job.spec.checkpoint, self._journal.last
        if last is None:
            return
        due = spec.every and (last.round + 1) % spec.every == 0
        # Whether they are the best is known once a later round has evaluated them: what is not is dropped then.
        judged = spec.best and is_due(self._job.spec.evaluation.every, last.round + 1)
        if not (due or judged or final or ending or self._cancellation.asked.is_set()):
            return
        progress = CheckpointProgress(
            round=last.round + 1,
            env_steps=last.env_steps,
            seed=self._job.spec.seed,
            actors=last.actors,
            algorithm=self._job.spec.algorithm.name,
            groups={group.policy: group.agents for group in last.groups},
        )
        versions = self._journal.versions, self._acting()
        spared = {round_ for round_ in (self._journal.best, evaluating) if spec.best and round_ is not None}
        await self._recovery.snapshots.save(progress, *versions, last.lanes, keep=spec.keep, spared=spared)
        self._flusher.begin()

    async def _end(self, state: str, reason: str) -> None:
        """Put the job away, and write its final status; a defect on the way ends it FAILED.

        Without a final status, the next scan of the run folders would take the job up, and it would end in the same
        way, for ever.
        """
        try:
            ended = await self._ended(state, reason)
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001  # see above
            self._folder.check_owned()
            why = f"{reason}; {self._of_defect(error)}"
            ended = replace(self.status, state="FAILED", reason=why, cancelling=False, ended_s=time.time())
        await self._finish(ended)

    def _of_defect(self, error: Exception) -> str:
        """The reason of a job that a defect has ended; logs its traceback."""
        _log.error("job.failed", job=self._id, exc_info=error)
        self.detail = "".join(traceback.format_exception(error)[-DETAIL_FRAMES:])
        return f"internal error: {told(error)}"

    async def _ended(self, state: str, reason: str) -> JobStatus:
        """Put the job away; returns its final status."""
        if self._fenced > MAX_FENCED:
            problem = ""  # the versions in the store are another coordinator's
        else:
            problem = await self._put_away()
        if problem:
            state, reason = ("FAILED", problem) if state == "SUCCEEDED" else (state, reason)
        if unfinished := await self._baseline.stop():
            self.status = replace(self.status, random=unfinished, random_cut=True)
        await self._recorder.machines.at_the_end(self._folder)
        cost_usd = await asyncio.to_thread(self._costs.total_usd)
        if self._costs.problem:
            self._log.warning("job.cost_unknown", problem=self._costs.problem)
        ended = replace(self.status, state=state, reason=reason, cancelling=False, ended_s=time.time())
        summary = recording.summary(ended, self._journal, self._timing, self._folder.path, cost_usd)
        return replace(ended, summary_json=summary.to_json())

    async def _finish(self, status: JobStatus) -> None:
        """Write the final status, and notify watchers once it is durable, or cannot be written (`LiveJob.saved`)."""
        self.status = status
        self._trace.ended(status)
        try:
            self._folder.write_status(status)
            await self._flusher.all()
        except FencedError:
            raise
        except MarlessError as error:
            self._log.error("job.status_not_saved", error=str(error))
        self._changed(None)

    async def _put_away(self) -> str:
        """Save the last versions and drop the job from the other services; returns why saving failed, "" if it did not.

        If saving failed, the versions stay in the store and the replay buffers in the learner pool, for a resume.
        """
        problem, release = "", self._recovery.end
        try:
            await self._checkpoint("", final=True)
            await to_the_end(self._folder.drop_pending)
            # Durable before the versions of the last checkpoint are deleted from the store.
            await self._flusher.all()
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001  # a defect, too, must not lose the versions
            self._folder.check_owned()  # else a successor has gone on, and has dropped those versions
            why = str(error) if isinstance(error, MarlessError) else self._of_defect(error)
            self._log.error("job.checkpoint_failed", error=why)
            problem = f"trained, but its last checkpoint could not be saved: {why}"
            release = self._recovery.release
        try:
            await release()
        except FencedError:
            raise
        except MarlessError as error:
            self._folder.check_owned()
            self._log.warning("job.not_forgotten", error=str(error))
        return problem

    def _show(self, reason: str) -> None:
        """Set the status's reason for watchers, without writing it to disk."""
        self.status = replace(self.status, reason=reason)
        self._changed(None)

    async def _save_epoch(self, epoch: int) -> None:
        """Write the epoch into the status durably; raises UnavailableError if that fails."""
        self.status = replace(self.status, epoch=epoch)
        self._folder.write_status(self.status)
        await self._flusher.all()

    def _set(self, **changes: Any) -> None:  # Any: fields of several types
        """Write a new status to disk and notify watchers, even if the write fails."""
        self.status = replace(self.status, **changes)
        try:
            self._folder.write_status(self.status)
        except UnavailableError as error:
            self._log.error("job.status_not_saved", error=str(error))
        self._changed(None)
