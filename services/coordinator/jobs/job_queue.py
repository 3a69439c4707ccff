"""The job queue of this coordinator: a bounded number of its jobs run, the others wait in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from marless.core.errors import OverloadedError
from services.coordinator.jobs.live_job import LiveJob

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
            await live.run()
            # The next job may start although this one's final status still waits for room on a disk.
            self._fill()
            await live.saved()
        finally:
            await live.close_sinks()
            live.folder.release()
            # After a replacement, another job has this id.
            if self._live.get(job) is live and not self._stopping:
                del self._live[job]
                if live.status.ended:
                    self._ended(job)
            live.notifier.tell()
            self._fill()
