"""The jobs that this coordinator owns: a bounded number of them run, the others wait in order of arrival.

Each has its progress, log, sinks and watchers, whom a `Notifier` wakes at every change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from marless.core.errors import FencedError, MarlessError, OverloadedError
from marless.jobs.job import PreparedJob
from marless.jobs.record import RoundRecord
from marless.learning.algos.learner import UNITS_OFF
from marless.services.coordinator.execution.job_run import JobRun
from marless.services.coordinator.execution.pools import Pools
from marless.services.coordinator.jobs.sink_feed import SinkFeed
from marless.services.coordinator.jobs.view import JobView, Tally, ended, view_of
from marless.services.coordinator.state.job_log import JobLog
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from marless.storage.round_file import JobProgress

MAX_WAITING = 1000
WAITING_RETRY_S = 60.0


class JobQueue:
    """Runs up to `running` jobs at once. A job leaves when it has ended or another coordinator has taken it over."""

    def __init__(self, running: int, ended: Callable[[str], None] = lambda _: None) -> None:
        """`ended` is called with each job that has ended here."""
        self._limit = running
        self._ended = ended
        self._live: dict[str, LiveJob] = {}
        self._queue: dict[str, LiveJob] = {}
        self._stopping = False

    @property
    def in_trouble(self) -> int:
        """Number of jobs that wait for a service or retry a round."""
        return sum(live.in_trouble for live in self._live.values())

    @property
    def prospect(self) -> str:
        """The `reason` that a job added now would show."""
        running = self._running()
        return f"waits for its turn: {running} jobs run" if running >= self._limit else "starts"

    def check_room(self) -> None:
        """Raise OverloadedError if no further job may be queued."""
        if len(self._queue) >= MAX_WAITING:
            raise OverloadedError(
                f"no room in the coordinator: {MAX_WAITING} jobs wait for their turn already; try again when some have "
                "ended",
                retry_after_s=WAITING_RETRY_S,
            )

    def get(self, job: str) -> LiveJob | None:
        """The job if it is queued or runs here, else None."""
        return self._live.get(job)

    def add(self, live: LiveJob) -> None:
        """Queue a job whose folder is owned; it starts as soon as there is a free place."""
        job = live.status.job
        self._live[job] = self._queue[job] = live
        self._fill()

    def withdraw(self, live: LiveJob) -> bool:
        """Remove a job if it is still queued; returns whether it was. Its folder stays owned."""
        if self._queue.pop(live.status.job, None) is None:
            return False
        del self._live[live.status.job]
        return True

    async def remove(self, live: LiveJob) -> None:
        """Remove a queued or running job, and release its folder."""
        if self.withdraw(live):
            live.folder.release()
            return
        self._live.pop(live.status.job, None)
        if live.task:
            live.task.cancel()
            await asyncio.gather(live.task, return_exceptions=True)
            live.folder.release()  # a task that is cancelled before its first step has not done so

    async def stop(self) -> None:
        """Stop all jobs and release their folders; their next owner continues them. Calling it twice is safe."""
        self._stopping = True
        tasks = [live.task for live in self._live.values() if live.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for live in self._live.values():
            await asyncio.to_thread(live.put_down)
            live.folder.release()  # a task that is cancelled before its first step has not released it
            live.notifier.tell()
        self._queue.clear()
        self._live.clear()

    def _running(self) -> int:
        return sum(live.task is not None and not live.status.ended for live in self._live.values())

    def _fill(self) -> None:
        while self._queue and not self._stopping and self._running() < self._limit:
            live = self._queue.pop(next(iter(self._queue)))
            live.task = asyncio.create_task(self._run(live))

    async def _run(self, live: LiveJob) -> None:
        job = live.status.job
        try:
            await live.job_run.run()
            # The next job may start although this one's final status still waits for room on a disk.
            self._fill()
            await live.saved()
        finally:
            await live.sinks.stop(live.status.state, live.status.random)
            live.folder.release()
            # After a replacement, another job has this id.
            if self._live.get(job) is live and not self._stopping:
                del self._live[job]
                if live.status.ended:
                    self._ended(job)
            live.notifier.tell()
            self._fill()


SAVE_PERIOD_S = 1.0
MOSTLY_OFF = 0.9
"""Share of a first layer's units that are off from which on the log of a job warns."""
_TURN_ON = "the net hardly reads what is observed; lower algorithm.lr and start anew, or set model.activation: tanh"


class LiveJob:
    """One job from the queue to its end; keeps its progress, writes its log, feeds its sinks, wakes its watchers."""

    def __init__(
        self,
        *,
        job: PreparedJob,
        folder: RunFolder,
        status: JobStatus,
        progress: JobProgress,
        pools: Pools,
        patience_s: float,
        tally: Tally,
        changed: Callable[[JobStatus], None],
    ) -> None:
        self.folder = folder
        self.notifier = Notifier()
        self.log = JobLog(folder, status.job, self.notifier.tell)
        self.task: asyncio.Task[None] | None = None
        """The task that runs the job; None while it is queued."""
        self.sinks = SinkFeed(job_id=status.job, spec=job.spec, folder=folder.path, log=self.log)
        self._tally = tally
        self._progress = progress
        self._changed = changed
        self._mostly_off: set[str] = set()
        """Policies of which the log tells that most units of a net are off; once is enough."""
        self.status = status
        """The present status; after the end, the final one."""
        self.job_run = JobRun(
            job_id=status.job,
            job=job,
            folder=folder,
            pools=pools,
            status=status,
            patience_s=patience_s,
            log=self.log,
            changed=self._note,
        )

    @property
    def in_trouble(self) -> bool:
        """True while the job waits for a service or retries a round."""
        return self.job_run.in_trouble and not self.status.ended

    @property
    def view(self) -> JobView:
        """The present view of the job."""
        return view_of(self.status, self.folder.path, self._progress)

    async def saved(self) -> None:
        """Wait until the final status is on the disk, which may have been full when the job ended."""
        while self.status.ended and not await asyncio.to_thread(self._save):  # noqa: ASYNC110  # for a disk
            await asyncio.sleep(SAVE_PERIOD_S)

    async def end(self, state: str, reason: str) -> None:
        """End a queued job with the given state; raises UnavailableError if the disk cannot be written."""
        status = await asyncio.to_thread(ended, self.status, self.folder, state, reason)
        # On the disk before anybody is told: who has seen the end must not see the job run again after a crash.
        await asyncio.to_thread(self.folder.write_status, status)
        await asyncio.to_thread(self.folder.flush)
        self._accept_status(status)

    def put_down(self) -> None:
        """Note that this coordinator stops by itself, so that it does not count among those that the job has ended."""
        if self.status.ended or not self.status.takeovers or self.folder.replaced:
            return
        with suppress(MarlessError):  # the disk is full, or another coordinator owns the job: neither is lost by it
            try:
                self.folder.check_owned()
            except FencedError:  # its run, which has ended, has released it
                if not self.folder.own():
                    return
            status = self.folder.read_status()
            if not status.ended:
                self.folder.write_status(replace(status, takeovers=0))
                self.folder.flush()

    def _save(self) -> bool:
        try:
            saved = self.folder.settled and self.folder.read_status() == self.status
            if not saved and self.folder.own():  # else another coordinator owns it
                self.folder.write_status(self.status)
                self.folder.flush()
        except MarlessError:
            return False
        finally:
            self.folder.release()
        return True

    def _note(self, record: RoundRecord | None) -> None:
        if record is not None:
            self._tally.add(record, after_env_steps=self._progress.env_steps)
            self._progress = self._progress.after(record)
            self._log_round(record)
            self.sinks.put(record, self.job_run.status.random)
        self._accept_status(self.job_run.status)

    def _accept_status(self, status: JobStatus) -> None:
        self._log_status(status)
        self.status = status
        self._changed(status)
        self.notifier.tell()

    def _log_status(self, status: JobStatus) -> None:
        if (status.state, status.reason) == (self.status.state, self.status.reason):
            return
        facts = {"state": status.state, "reason": status.reason}
        if not status.ended:
            self.log.info("job.status", **facts)
        elif status.state == "FAILED":
            self.log.error("job.ended", **facts, **({"detail": self.job_run.detail} if self.job_run.detail else {}))
        else:
            self.log.info("job.ended", **facts)

    def _log_round(self, record: RoundRecord) -> None:
        for each in record.invocations:
            if each.attempt > 1:
                self.log.warning("invocation.repeated", id=each.id, attempt=each.attempt, worker=each.worker)
        for policy, metrics in record.metrics.items():
            off = max((value for name, value in metrics.items() if name.endswith(UNITS_OFF)), default=0.0)
            if off >= MOSTLY_OFF and policy not in self._mostly_off:
                self._mostly_off.add(policy)
                self.log.warning("policy.units_off", round=record.round + 1, policy=policy, share=off, advice=_TURN_ON)
        if record.broken_episodes:
            self.log.warning("episodes.broken", round=record.round + 1, episodes=record.broken_episodes)
        for evaluation in record.evaluations:
            self.log.info(
                "round.evaluated",
                round=evaluation.rounds,
                env_steps=evaluation.env_steps,
                episodes=evaluation.returns.episodes,
                greedy_return=evaluation.returns.mean,
                **({} if evaluation.returns.win_rate is None else {"win_rate": evaluation.returns.win_rate}),
            )


class Notifier:
    """Wakes all waiting tasks at each change. To miss none, take `next`, then read the state, then wait for `next`."""

    def __init__(self) -> None:
        self.next = asyncio.Event()

    def tell(self) -> None:
        """Wake all waiting tasks: something has changed."""
        self.next.set()
        self.next = asyncio.Event()
