"""The jobs of a coordinator: accepted once, run side by side, watched by anyone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from marless.errors import AlreadyExistsError, CorruptError, NotFoundError, OverloadedError, UnavailableError
from marless.job import check_id, prepare
from marless.record import RoundRecord
from marless.spec import from_json
from services.coordinator.pools import Pools
from services.coordinator.rounds import JobRun
from services.coordinator.run_folder import JobStatus, RunFolder

MAX_RUNNING = 16
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


@dataclass(frozen=True)
class Event:
    """A new round, or a new status; `cursor` counts the rounds recorded so far."""

    cursor: int
    record: RoundRecord | None
    status: JobStatus | None


@dataclass
class _Entry:
    spec_json: str
    folder: RunFolder
    run: JobRun | None = None
    task: asyncio.Task[None] | None = None
    rounds: int = 0
    last: RoundRecord | None = None
    changes: int = 0
    """Grows with every change; watchers compare it."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)


class Jobs:
    """An async context manager: jobs that still run when it ends are cancelled and recorded so."""

    def __init__(self, runs: Path, pools: Pools) -> None:
        self._runs = runs
        self._pools = pools
        self._jobs: dict[str, _Entry] = {}
        self._notices: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Jobs:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Cancel what runs and record it so; watchers see the end. Twice is safe."""
        tasks = [entry.task for entry in self._jobs.values() if entry.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._notices, return_exceptions=True)

    async def submit(self, job_id: str, spec_json: str) -> JobStatus:
        """Accept a job and start it; the same job submitted again is answered as before.

        Raises SpecError, AlreadyExistsError for an id taken by other content, OverloadedError.
        """
        check_id(job_id)
        known = self._jobs.get(job_id)
        if known is not None:
            if known.spec_json != spec_json:
                raise AlreadyExistsError(f"job {job_id!r} exists with another spec; choose another id")
            return self.status(job_id)
        if sum(entry.task is None or not entry.task.done() for entry in self._jobs.values()) >= MAX_RUNNING:
            raise OverloadedError(f"{MAX_RUNNING} jobs run already; try again when one has ended")
        spec = from_json(spec_json)
        entry = self._jobs[job_id] = _Entry(spec_json, RunFolder((self._runs / job_id).resolve()))
        try:
            job = await asyncio.to_thread(prepare, spec)
            await asyncio.to_thread(entry.folder.create, spec)
            run = entry.run = JobRun(
                job_id=job_id,
                job=job,
                folder=entry.folder,
                pools=self._pools,
                changed=lambda record: self._note(entry, record),
            )
            await asyncio.to_thread(entry.folder.write_status, run.status)
        except BaseException:
            del self._jobs[job_id]
            raise
        entry.task = asyncio.create_task(run.run())
        return run.status

    def status(self, job_id: str) -> JobStatus:
        """The present status; raises NotFoundError, or UnavailableError while the spec is being checked."""
        run = self._entry(job_id).run
        if run is None:
            raise UnavailableError(f"job {job_id!r} is still being checked; ask again")
        return run.status

    def rounds(self, job_id: str) -> int:
        """Rounds recorded so far."""
        return self._entry(job_id).rounds

    def run_dir(self, job_id: str) -> Path:
        """The run folder."""
        return self._entry(job_id).folder.path

    def cancel(self, job_id: str) -> JobStatus:
        """Ask a job to stop after its present round; a job that has ended stays as it is."""
        run = self._entry(job_id).run
        if run is not None:
            run.cancel()
        return self.status(job_id)

    async def watch(self, job_id: str, cursor: int) -> AsyncIterator[Event]:
        """Rounds from number `cursor` on and every change of status, until the job has ended."""
        entry = self._entry(job_id)
        shown: JobStatus | None = None
        while True:
            changes = entry.changes
            while cursor < entry.rounds:
                records = await asyncio.to_thread(self._records, entry, cursor)
                if not records:
                    raise CorruptError(f"{entry.folder.path}: round {cursor} is no longer in rounds.jsonl")
                for record in records:
                    cursor = record.round + 1
                    yield Event(cursor, record, None)
            status = self.status(job_id)
            if status is not shown:
                shown = status
                yield Event(cursor, None, status)
            if status.state in _ENDED and cursor >= entry.rounds:
                return
            async with entry.changed:
                await entry.changed.wait_for(lambda: entry.changes != changes)  # noqa: B023  # awaited right here

    def _records(self, entry: _Entry, first: int) -> list[RoundRecord]:
        """What a watcher lacks: usually the newest round, which is in memory."""
        if entry.last is not None and entry.last.round == first:
            return [entry.last]
        return list(entry.folder.records(first))

    def _note(self, entry: _Entry, record: RoundRecord | None) -> None:
        entry.changes += 1
        if record is not None:
            entry.last, entry.rounds = record, record.round + 1
        notice = asyncio.create_task(self._notify(entry))
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _notify(self, entry: _Entry) -> None:
        async with entry.changed:
            entry.changed.notify_all()

    def _entry(self, job_id: str) -> _Entry:
        if job_id not in self._jobs:
            raise NotFoundError(f"there is no job {job_id!r}")
        return self._jobs[job_id]
