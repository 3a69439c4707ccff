"""The jobs of a runs directory: submitted idempotently, run concurrently, continued after a coordinator's failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from marless.core import documents
from marless.core.errors import AlreadyExistsError, CorruptError, JobStateError, NotFoundError, SpecError, shown
from marless.core.limits import check_id, is_id
from marless.core.machine import MachineRecord
from marless.jobs.job import PreparedJob
from marless.jobs.spec import from_json, with_stop
from marless.rpc.concurrency import to_the_end
from marless.services.coordinator.execution.planning import ending
from marless.services.coordinator.execution.pools import Pools
from marless.services.coordinator.jobs import view
from marless.services.coordinator.jobs.failover import Aftermath, Failover
from marless.services.coordinator.jobs.job_queue import JobQueue, LiveJob
from marless.services.coordinator.jobs.submission import Preparing, Submission, accepted, answered, check_request_id
from marless.services.coordinator.jobs.view import JobView, Tally
from marless.services.coordinator.state.checkpoints import start_checkpoint
from marless.services.coordinator.state.journal import Costs, Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.runs import Index, Runs
from marless.services.coordinator.state.status import JobStatus
from marless.services.coordinator.state.uploads import FileUploads
from marless.storage.bucket import reading
from marless.storage.round_file import JobProgress, progress_of

T = TypeVar("T")
MOST_TAKEOVERS = 10
"""Coordinators in a row that may end while they run a job without recording a round of it; the job fails then, because
each of them served all other jobs, too."""


@dataclass(frozen=True, kw_only=True)
class JobsOptions:
    """Limits and timeouts of a coordinator's jobs."""

    running: int = 4
    """Jobs that run at once; others are queued."""
    lease_s: float = 5.0
    """A coordinator that does not touch a job's lock file for this many seconds loses the job."""
    patience_s: float = 120.0
    """Seconds that a job waits for a service that is down, before it fails."""
    uploads_bytes: int = 2**28
    """Total size of the uploaded checkpoints that no job has taken yet."""
    only: str = ""
    """The only job to continue; "": all jobs of the runs directory."""


class Jobs:
    """What the coordinator does with jobs: submit, list, cancel, resume, delete; an async context manager.

    Jobs that run when it exits stay RUNNING on disk, and the next coordinator continues them.
    """

    def __init__(
        self, runs: Path | Runs, pools: Pools, options: JobsOptions | None = None, preparing: Preparing | None = None
    ) -> None:
        self._runs = runs if isinstance(runs, Runs) else Runs(runs)
        self.runs = self._runs.path
        self.place = self._runs.place
        """Where the run folders are, for people: a directory, or s3://bucket/prefix."""
        self._pools = pools
        self._options = options or JobsOptions()
        self.uploads = FileUploads(self.runs, self._options.uploads_bytes)
        self.index = Index(self._runs)
        self._aftermath = Aftermath(pools, lambda job, machines: self._whole(job, self._keep(job, machines)))
        self.queue = JobQueue(self._options.running, self._aftermath.follow)
        self._preparing = preparing or Preparing()
        self._failover = Failover(
            self.index,
            self._runs,
            lease_s=self._options.lease_s,
            only=self._options.only,
            is_ours=self._is_ours,
            continue_job=lambda folder: self._whole(folder.path.name, self._continue(folder)),
        )
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._verbs: set[asyncio.Task[Any]] = set()  # Any: their results differ
        self.stopped = False
        self.tally = Tally()

    async def __aenter__(self) -> Jobs:
        await asyncio.to_thread(self.index.prepare)
        # Before the first request is served: a list without the jobs that are there would be wrong.
        await self.index.look(self._is_ours)
        self._failover.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Release all jobs and end all streams; calling it twice is safe."""
        self.stopped = True
        self._preparing.stop()
        await self._failover.stop()
        await self._aftermath.stop()
        # Before the queue stops, because a request that is under way may still add a job to it.
        await asyncio.gather(*self._verbs, return_exceptions=True)
        await self.queue.stop()

    def live(self, job: str) -> LiveJob | None:
        """The job if this coordinator runs it or has it queued, else None."""
        return self.queue.get(job)

    def folder(self, job: str) -> RunFolder:
        """The run folder of a job; raises NotFoundError for an invalid id."""
        if not is_id(job):
            raise NotFoundError(f"there is no job {shown(job)}")
        return self._runs.folder(job)

    async def get(self, job: str) -> JobView:
        """The present view of a job; raises NotFoundError."""
        if live := self.queue.get(job):
            return live.view
        try:
            return await asyncio.to_thread(view.fresh, self.folder(job))
        except NotFoundError:
            raise NotFoundError(f"there is no job {job!r}") from None

    async def bring(self, job: str) -> None:
        """Have all files of a job here, if it is kept in a bucket and runs elsewhere; raises NotFoundError."""
        if not self.queue.get(job):
            await asyncio.to_thread(self.folder(job).refresh, reading.everything)

    async def page(self, size: int, token: str, states: Collection[str]) -> tuple[list[JobView], str]:
        """Jobs, newest first, and the token of the next page; see `Index.page`."""
        ids, after = self.index.page(size, token, states)
        views = await asyncio.gather(*map(self.get, ids), return_exceptions=True)
        return [found for found in views if isinstance(found, JobView)], after

    async def submit(self, request: Submission) -> JobView:
        """Accept a job, or return the existing one; see `CoordinatorService.SubmitJob` for the rules.

        Raises SpecError, AlreadyExistsError, OverloadedError, UnavailableError.
        """
        check_id(request.job)
        check_request_id(request.request_id)
        return await self._whole(request.job, self._submit(request))

    async def cancel(self, job: str) -> JobView:
        """Ask a job to stop after its present round; a queued job ends at once.

        Raises NotFoundError, and JobStateError if another coordinator runs the job.
        """
        return await self._whole(job, self._cancel(job))

    async def resume(self, job: str, request_id: str, stop_json: str) -> JobView:
        """Continue a job that has ended; the stop rules in `stop_json` replace its own of the same names.

        Raises NotFoundError, SpecError, JobStateError, OverloadedError, UnavailableError.
        """
        check_request_id(request_id)
        return await self._whole(job, self._resume(job, request_id, stop_json))

    async def delete(self, job: str, *, allow_missing: bool) -> None:
        """Delete a job that has ended, its folder and its versions in the store.

        Raises NotFoundError unless `allow_missing`, JobStateError for an unfinished job, UnavailableError.
        """
        await self._whole(job, self._delete(job, allow_missing=allow_missing))

    async def _whole(self, job: str, verb: Coroutine[Any, Any, T]) -> T:
        """Run `verb` alone among the calls for this job, and to its end even if the caller is cancelled."""

        async def alone() -> T:
            async with lock:
                return await verb

        # The dictionary is weak: a lock lasts as long as a call for its job holds it.
        lock = self._locks.setdefault(job, asyncio.Lock())
        task = asyncio.create_task(alone())
        self._verbs.add(task)
        task.add_done_callback(self._verbs.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may be gone
        return await asyncio.shield(task)

    async def _submit(self, request: Submission, *, again: bool = False) -> JobView:
        spec = await asyncio.to_thread(from_json, request.spec_json)
        try:
            known: JobView | None = await self.get(request.job)
        except NotFoundError:
            known = None
        if known:
            there, _ = await asyncio.to_thread(self.folder(request.job).load)
            if answered(request, spec, there, known.status):
                return known
        # Refused before the environment is made, which takes a process of its own and seconds.
        self.queue.check_room()
        job = await self._preparing.prepared(spec, new=True)
        if (other := spec.start.checkpoint) and is_id(other):
            with suppress(NotFoundError):
                await self.bring(other)
        source = await asyncio.to_thread(start_checkpoint, job, request.job, self.runs, self.uploads)
        # The present job goes only now that its successor is known to be valid.
        if known:
            await self._remove(request.job)
        status = accepted(request, spec, self.queue.prospect)
        folder = self.folder(request.job)
        try:
            await asyncio.to_thread(folder.create, spec, status, source)
        except AlreadyExistsError:  # a coordinator whose place this one has taken may have accepted the same request
            if again:
                raise
            return await self._submit(request, again=True)
        if spec.start.checkpoint:
            # The run folder has a copy of its own by now.
            await asyncio.to_thread(self.uploads.discard, spec.start.checkpoint)
        return self._enqueue_job(job, folder, status, JobProgress(), "job.accepted")

    async def _present(self, job: str) -> JobView:
        """The present view of a job, which is first taken over if it is unfinished and no coordinator runs it."""
        seen = await self.get(job)
        if seen.status.ended or self.queue.get(job) or self._options.only not in ("", job):
            return seen
        await self._continue(self.folder(job))
        return await self.get(job)

    async def _cancel(self, job: str) -> JobView:
        seen, live = await self._present(job), self.queue.get(job)
        if live and self.queue.withdraw(live):
            try:
                await live.end("CANCELLED", "cancelled by its user before its turn came")
            # The user is told that this failed, so the job must not be missing from the queue.
            except BaseException:
                self.queue.add(live)
                raise
            live.folder.release()
        elif live:
            live.job_run.cancel()
            await asyncio.to_thread(live.folder.flush)
        elif not seen.status.ended:
            raise JobStateError(f"job {job!r} is run by another coordinator; cancel it there")
        return await self.get(job)

    async def _resume(self, job: str, request_id: str, stop_json: str) -> JobView:
        known = (await self._present(job)).status
        # The answer to an earlier attempt of this request was lost: the job has been resumed.
        if request_id and known.resume_request_id == request_id:
            return await self.get(job)
        if not known.ended:
            raise JobStateError(f"job {job!r} has not ended; there is nothing to resume")
        self.queue.check_room()
        folder = self.folder(job)
        await self._own(folder)
        try:
            return await self._restart(folder, request_id, stop_json)
        except BaseException:
            folder.release()
            raise

    async def _restart(self, folder: RunFolder, request_id: str, stop_json: str) -> JobView:
        given, status = await asyncio.to_thread(folder.load)
        spec = given
        if stop_json:
            spec = await asyncio.to_thread(lambda: with_stop(given, documents.from_json(stop_json, "stop"), "resume"))
        journal = Journal(folder, Costs(spec, folder))
        await asyncio.to_thread(journal.read)
        if status.state != "FAILED" and (reached := ending(spec.stop, journal)):
            raise JobStateError(f"job {status.job!r} has no round left to run: {reached}; change that stop rule")
        job = await self._preparing.prepared(spec, new=True)
        # The spec first: as long as the status says that the job has ended, nobody runs it by new stop rules.
        if spec != given:
            await asyncio.to_thread(folder.write_spec, spec)
        attached = status.job == self._options.only
        status = status.resumed(request_id, reason=self.queue.prospect, attached=attached)
        await asyncio.to_thread(folder.write_status, status)
        await asyncio.to_thread(folder.flush)
        progress = await asyncio.to_thread(progress_of, folder.rounds_path)
        return self._enqueue_job(job, folder, status, progress, "job.resumed")

    async def _delete(self, job: str, *, allow_missing: bool) -> None:
        try:
            status: JobStatus | None = (await self._present(job)).status
        except CorruptError:
            status = None
        except NotFoundError:
            if allow_missing:
                return
            raise
        if status and not status.ended:
            raise JobStateError(f"job {job!r} has not ended; cancel it first, then delete it")
        await self._remove(job)

    async def _remove(self, job: str) -> None:
        """Remove a job in any state.

        The other services' data of it goes first, so that a new job of the same id never finds old versions.
        """
        if live := self.queue.get(job):
            await self.queue.remove(live)
        folder = self.folder(job)
        await self._own(folder)
        try:
            await self._pools.close_job(job)
            await self._pools.store.delete_job(job)
            await asyncio.to_thread(folder.delete)
        finally:
            folder.release()
        self.index.discard(job)

    async def _keep(self, job: str, machines: tuple[MachineRecord, ...]) -> bool:
        """Note in a job's machines.json what they do after its end; False if that is over, as when it was resumed."""
        folder = self.folder(job)
        kept = await asyncio.to_thread(folder.read_kept)
        if self.queue.get(job) or kept is None or not await to_the_end(folder.own):
            return False
        try:
            # Read with the lock in hand: another coordinator may have resumed the job since it was looked at.
            if not (await asyncio.to_thread(folder.read_status)).ended:
                return False
            await asyncio.to_thread(folder.write_kept, replace(kept, now=machines, seen_s=time.time()))
            await asyncio.to_thread(folder.flush)
        finally:
            folder.release()
        return True

    def _is_ours(self, job: str) -> bool:
        return self.queue.get(job) is not None

    async def _own(self, folder: RunFolder) -> None:
        if not await to_the_end(folder.own):
            raise JobStateError(f"job {folder.path.name!r} is run by another coordinator; send the request to that one")

    def _enqueue_job(
        self, job: PreparedJob, folder: RunFolder, status: JobStatus, progress: JobProgress, event: str
    ) -> JobView:
        """Queue a job whose status is on the disk."""
        live = LiveJob(
            job=job,
            folder=folder,
            status=status,
            progress=progress,
            pools=self._pools,
            patience_s=self._options.patience_s,
            tally=self.tally,
            changed=self.index.note,
        )
        folder.keep_beating()
        self.index.note(status)
        live.log.info(event, env=status.env, algorithm=status.algorithm, seed=job.spec.seed, reason=status.reason)
        self.queue.add(live)
        return live.view

    async def _continue(self, folder: RunFolder) -> bool:
        """Continue a job that no coordinator runs; False if another one does."""
        if self._is_ours(folder.path.name):
            folder.release()
            return True
        if folder.ownership is None and not await to_the_end(folder.own):
            return False
        try:
            await self._go_on(folder)
        except BaseException:
            folder.release()
            raise
        return True

    async def _go_on(self, folder: RunFolder) -> None:
        status = await asyncio.to_thread(folder.read_status)
        if status.ended:
            self.index.note(status)
            folder.release()
            return
        progress, reason = JobProgress(), ""
        try:
            progress = await asyncio.to_thread(progress_of, folder.rounds_path)
        except CorruptError as error:
            reason = str(error)
        if status.attached and status.job != self._options.only:
            where = f"after round {progress.rounds}" if progress.rounds else "before its first round ended"
            reason = f"its coordinator was killed {where}; `marless resume {status.job}` goes on"
        status = status.taken_over(progress.rounds)
        if status.takeovers > MOST_TAKEOVERS and not reason:
            reason = (
                f"{MOST_TAKEOVERS} coordinators in a row ended while they ran it, none of which recorded a round after "
                f"round {progress.rounds}; see their logs, and `marless resume {status.job}` to try again"
            )
        job: PreparedJob | None = None
        if not reason:
            try:
                # Durable before anything of the job is touched: if that ends this coordinator, the next one counts it.
                await asyncio.to_thread(folder.write_status, status)
                await asyncio.to_thread(folder.flush)
                spec, _ = await asyncio.to_thread(folder.load)
                job = await self._preparing.prepared(spec)
            except (SpecError, CorruptError, NotFoundError) as error:  # it is ours, so nobody has deleted it
                reason = str(error)
        if job is None:
            last = await asyncio.to_thread(view.ended, status, folder, "FAILED", reason)
            await asyncio.to_thread(folder.write_status, last)
            await asyncio.to_thread(folder.flush)
            self.index.note(last)
            folder.release()
            return
        self._enqueue_job(job, folder, status, progress, "job.found")
