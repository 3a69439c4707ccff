"""Streams a job's events and its log to clients, from any position, until the job has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from marless.core.errors import CorruptError, UnavailableError
from marless.rpc.requests import check_number
from marless.storage.round_file import RoundReader
from services.coordinator.jobs.jobs import Jobs
from services.coordinator.jobs.live_job import LiveJob
from services.coordinator.jobs.view import JobView
from services.coordinator.state import job_log
from services.coordinator.state.job_log import StoredLine

MOST_LINES = 1_000_000
FOREIGN_PERIOD_S = 0.2
"""Seconds between two looks at the folder of a job that this coordinator does not run."""


@dataclass(frozen=True)
class WatchEvent:
    """A new round, or a new status; `cursor` counts the rounds recorded so far."""

    cursor: int
    record_json: str
    """The round's line of rounds.jsonl; "" for a status."""
    view: JobView | None


async def watch(jobs: Jobs, job: str, cursor: int) -> AsyncIterator[WatchEvent]:
    """Rounds from number `cursor` on and every change of status, until the job has ended.

    Rounds are read from the disk in batches of bounded size, no faster than the client takes them, so that a slow
    client costs little memory. Raises NotFoundError, CorruptError, and UnavailableError when the coordinator stops.
    """
    check_number("cursor", cursor)
    shown: JobView | None = None
    source = _Source(jobs, job)
    rounds = RoundReader(jobs.folder(job).rounds_path)
    while True:
        view = await source.look()
        # Before the status: nothing follows the event that the job has ended.
        while cursor < view.rounds and (lines := await asyncio.to_thread(rounds.batch, cursor)):
            for line in lines:
                cursor += 1
                yield WatchEvent(cursor, line, None)
        if shown is None or view.status != shown.status:
            shown = view
            yield WatchEvent(cursor, "", view)
        if view.status.ended:
            if cursor < view.rounds:
                raise CorruptError(f"{view.run_dir}: round {cursor + 1} is not in rounds.jsonl")
            return
        await source.notifier()


async def read_log(jobs: Jobs, job: str, cursor: int, *, follow: bool, tail: int) -> AsyncIterator[StoredLine]:
    """Lines of a job's log from `cursor` on, or the last `tail` ones; with `follow`, until the job has ended.

    Raises NotFoundError, SpecError for a bad cursor, and UnavailableError when the coordinator stops.
    """
    check_number("tail", tail, most=MOST_LINES)
    path = jobs.folder(job).log_path
    source = _Source(jobs, job)
    await source.look()
    if tail:
        cursor = await asyncio.to_thread(job_log.tail, path, tail)
    while True:
        view = await source.look()
        while lines := await asyncio.to_thread(job_log.lines, path, cursor):
            for line in lines:
                cursor = line.cursor
                yield line
        if not follow or (view.status.ended and source.left):
            return
        await source.notifier()


class _Source:
    """The source of one job's changes: the live job if this coordinator runs it, else its folder."""

    def __init__(self, jobs: Jobs, job: str) -> None:
        self._jobs = jobs
        self._job = job
        self._live: LiveJob | None = None
        self._next: asyncio.Event | None = None

    @property
    def left(self) -> bool:
        """True if this coordinator does not run the job, so that it adds nothing to its log."""
        return self._jobs.live(self._job) is None

    async def look(self) -> JobView:
        """The present view. That of a job that has just ended here is not read from disk, which may be full."""
        live = self._jobs.live(self._job)
        if live or not (self._live and self._live.status.ended):
            self._live = live
        # Taken before the view, so that a change between the two is not slept through.
        self._next = live.notifier.next if live else None
        return self._live.view if self._live else await self._jobs.get(self._job)

    async def notifier(self) -> None:
        """Wait for a possible change; raises UnavailableError if the coordinator is stopping."""
        if self._jobs.stopped:
            raise UnavailableError("the coordinator is stopping; continue from the last cursor")
        if self._next:
            await self._next.wait()
        else:
            await asyncio.sleep(FOREIGN_PERIOD_S)
