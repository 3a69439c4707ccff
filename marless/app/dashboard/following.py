"""`JobFollower`: keeps one job's curves, state and log up to date for all pages that show it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any

from marless.app.client import Job, LogLine
from marless.app.dashboard import rows
from marless.app.dashboard.rows import Mark
from marless.app.dashboard.series import RunSeries
from marless.app.dashboard.sources import JobSource
from marless.core.errors import MarlessError, NotFoundError, UnavailableError

MOST_LOG_LINES = 5000
"""Newest lines of a log that are kept."""
LOOK_S = 2.0
"""Seconds between two looks at a job that has ended, which may be resumed, or that cannot be read."""
BATCH = 128
"""Lines decoded before other work gets its turn: some 10 ms."""
_MARKED = {"error": "fault", "critical": "fault", "warning": "fault"}
_RECORDED = ("invocation.repeated", "job.continued")
"""Events of which rounds have a mark of their own."""
_RECOVERED = ("resum", "recover", "restor", "takeover", "taken_over", "continued")


class JobFollower:
    """One job, followed from its first round until `stop`. Those who show it wait for `changed`."""

    def __init__(self, source: JobSource, name: str) -> None:
        self.name = name
        self.series = RunSeries()
        self.generation = 0
        """Counts the jobs of this name: it grows when one replaces another, whose rounds are dropped."""
        self.job: Job | None = None
        self.problem = ""
        """What cannot be read, for people; the rounds before it are there."""
        self.unreachable = ""
        """Why the coordinator does not answer; "" while it does."""
        self.missing = False
        """True if there is no such job."""
        self.loaded = asyncio.Event()
        """Set when what was recorded at the start has been read, or cannot be."""
        self.log: deque[LogLine] = deque(maxlen=MOST_LOG_LINES)
        self.changes = 0
        """Changes so far."""
        self.watchers = 0
        self.used_s = self._began_s = time.monotonic()
        self._source = source
        self._changed = asyncio.Event()
        self._tasks = [asyncio.create_task(self._follow_rounds()), asyncio.create_task(self._follow_log())]

    @property
    def changed(self) -> asyncio.Event:
        """The event that the next change sets; take it before looking."""
        return self._changed

    def announce(self) -> None:
        """Wake all who wait for a change."""
        event, self._changed = self._changed, asyncio.Event()
        self.changes += 1
        event.set()

    async def stop(self) -> None:
        """Stop following."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def known(self, timeout_s: float) -> None:
        """Wait until the recorded rounds are read, or `timeout_s` after following began; raises NotFoundError if there
        is no job.
        """
        if not self.loaded.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._began_s + timeout_s - time.monotonic()):
                    await self.loaded.wait()
        if self.missing:
            raise NotFoundError(f"there is no job {self.name!r} in {self._source.place}")

    async def _follow_rounds(self) -> None:
        while True:
            try:
                await self._read_until_end()
                self.problem = ""
            except NotFoundError:
                self.missing = self.job is None
                self.problem = f"job {self.name} has been deleted"
            except UnavailableError as error:
                self.unreachable = str(error)
            except MarlessError as error:
                self.problem = str(error)
            self.loaded.set()
            self.announce()
            await self._until_it_continues()

    async def _read_until_end(self) -> None:
        async with aclosing(self._source.follow(self.name, self.series.rounds)) as stream:
            async for found in stream:
                self.unreachable, self.missing = "", False
                if isinstance(found, Job):
                    self._set_job(found)
                    if found.rounds <= self.series.rounds:
                        self.loaded.set()
                else:
                    await self._add(found)
                self.announce()

    def _set_job(self, found: Job) -> None:
        if self.job and self.job.accepted_s != found.accepted_s:
            self.series, self.generation = RunSeries(), self.generation + 1
            self.log.clear()
        self.job = found

    async def _add(self, lines: Sequence[bytes]) -> None:
        for start in range(0, len(lines), BATCH):
            for line in lines[start : start + BATCH]:
                if line:
                    self.series.add(rows.decode(line, self.series.rounds, f"rounds.jsonl of job {self.name}"))
            await asyncio.sleep(0)

    async def _until_it_continues(self) -> None:
        """Wait until an ended job has been resumed or replaced, or until it is worth trying again."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = await self._source.get(self.name)
            except MarlessError as error:
                self._note(error)
                continue
            was, self.unreachable, self.missing = self.unreachable, "", False
            replaced = self.job is not None and self.job.accepted_s != found.accepted_s
            if replaced or self.job is None or found.state != self.job.state:
                self._set_job(found)
                self.announce()
                return
            if was or self.problem or not found.state.ended or found.rounds > self.series.rounds:
                self.announce()
                return

    def _note(self, error: MarlessError) -> None:
        told = str(error)
        before = (self.unreachable, self.problem)
        if isinstance(error, UnavailableError):
            self.unreachable = told
        else:
            self.problem = told
        if before != (self.unreachable, self.problem):
            self.announce()

    async def _follow_log(self) -> None:
        cursor = 0
        while True:
            try:
                async with aclosing(self._source.logs(self.name, cursor)) as lines:
                    async for line in lines:
                        cursor = line.cursor
                        self.log.append(line)
                        if mark := _mark(line.fields, self.series.rounds):
                            self.series.add_mark(mark)
                        self.announce()
            except MarlessError:
                pass  # the rounds' task tells what is wrong
            await asyncio.sleep(LOOK_S)


def _mark(fields: dict[str, Any], rounds: int) -> Mark | None:  # Any: JSON
    """The mark of a line of the log, if it tells of a fault or a recovery that no record tells."""
    event, level = str(fields.get("event", "")), str(fields.get("level", ""))
    if event in _RECORDED:
        return None
    kind = "recovery" if any(word in event for word in _RECOVERED) else _MARKED.get(level, "")
    if not kind:
        return None
    told = fields.get("round", rounds)
    round_ = told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else rounds
    reason = fields.get("reason") or fields.get("error") or fields.get("message") or ""
    return Mark(round_, kind, f"{event}: {reason}"[:300] if reason else event[:300])
