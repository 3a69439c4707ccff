"""Server-sent events: the list of jobs, and what happens in one job. A stream resumes at the id that it is given.

There is no queue for a slow browser: each stream has a position in what the hub keeps, and takes what is there when its
connection has room. One that has fallen too far behind is told to load its curves anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from marless.app.dashboard.following import JobFollower
from marless.app.dashboard.hub import Hub
from marless.app.dashboard.series import RECENT
from marless.core.errors import OverloadedError

MOST_STREAMS = 256
"""EventStreams of all browsers together."""
ALIVE_S = 10.0
"""Seconds after which a silent stream says that it is alive."""
BATCH = 64
"""Rounds of one event."""
FASTEST_S = 0.2
"""Seconds between two events of a stream: quick rounds come several at a time."""
LOADING_S = 0.5
"""The same while a long job is being read, of which pages show more each time."""


class EventStreams:
    """The open streams of one dashboard."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._open = 0
        self._states: WeakKeyDictionary[JobFollower, tuple[int, bytes]] = WeakKeyDictionary()
        """The newest state of each job as JSON, and at which of its changes it was made."""

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        """The list of jobs, whole, whenever it has changed."""
        hub = self._hub
        async with self._opened(request) as send:
            hub.list_watchers += 1
            hub.want_list()
            try:
                while True:
                    changed = hub.listed
                    if hub.listing or hub.unreachable:
                        await send("jobs", "", listing_json(hub))
                    await _wait(changed, send)
            finally:
                hub.list_watchers -= 1
        return send.response

    async def job(self, request: web.Request) -> web.StreamResponse:
        """What happens in a job: its state, rounds and log. An id is generation, rounds, and cursor of the log."""
        follower = await self._hub.follower(request.match_info["job"])
        position = StreamPosition.parse(request.headers.get("Last-Event-ID", ""), follower)
        async with self._opened(request) as send:
            follower.watchers += 1
            try:
                told, marked = b"", 0
                while True:
                    changed = follower.changed
                    state = self._state(follower)
                    if marked != follower.series.marked:
                        marked = follower.series.marked
                        await send("marks", position.id, msgspec.json.encode(list(follower.series.marks)))
                    await position.send_rounds(send)
                    await position.send_log(send)
                    # Last, so that a page has all rounds of a job that it is told has ended.
                    if state != told:
                        told = state
                        await send("state", position.id, state)
                    await asyncio.sleep(FASTEST_S if follower.loaded.is_set() else LOADING_S)
                    await _wait(changed, send)
            finally:
                follower.watchers -= 1
        return send.response

    def _state(self, follower: JobFollower) -> bytes:
        """The state of a job, encoded once for all streams."""
        changes, state = self._states.get(follower, (-1, b""))
        if changes != follower.changes:
            state = state_json(follower)
            self._states[follower] = follower.changes, state
        return state

    @asynccontextmanager
    async def _opened(self, request: web.Request) -> AsyncIterator[Send]:
        if self._open >= MOST_STREAMS:
            raise OverloadedError(f"{MOST_STREAMS} pages are open, which is the most; close some")
        self._open += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
            await response.prepare(request)
            # A stream ends by its browser, which a write may notice before this task is cancelled.
            with suppress(ConnectionError):
                yield Send(response)
        finally:
            self._open -= 1


class Send:
    """Writes events to one browser; waits while its connection is full."""

    def __init__(self, response: web.StreamResponse) -> None:
        self.response = response

    async def __call__(self, event: str, identity: str, data: bytes) -> None:
        head = f"event: {event}\n" + (f"id: {identity}\n" if identity else "")
        # JSON has no line feed, which would end the event.
        await self.response.write(head.encode() + b"data: " + data + b"\n\n")

    async def alive(self) -> None:
        """Write a comment, so that both sides see a broken connection."""
        await self.response.write(b": alive\n\n")


class StreamPosition:
    """How far one browser has got in a job."""

    def __init__(self, follower: JobFollower, generation: int, rounds: int, log: int) -> None:
        self._follower = follower
        self._generation, self._rounds, self._log = generation, rounds, log

    @classmethod
    def parse(cls, identity: str, follower: JobFollower) -> StreamPosition:
        """The position of an event's id; for anything else the present one, with the log from its beginning."""
        parts = identity.split(".")
        if len(parts) == 3 and all(part.isascii() and part.isdecimal() and len(part) < 16 for part in parts):
            return cls(follower, *map(int, parts))
        return cls(follower, follower.generation, follower.series.rounds, 0)

    @property
    def id(self) -> str:
        """The id of an event that was sent."""
        return f"{self._generation}.{self._rounds}.{self._log}"

    async def send_rounds(self, send: Send) -> None:
        """Send the rounds that are new; or one event that says to load all curves anew."""
        series = self._follower.series
        behind = series.rounds - self._rounds
        if self._generation != self._follower.generation or not 0 <= behind <= len(series.updates):
            self._generation, self._rounds = self._follower.generation, series.rounds
            await send("reset", self.id, b"{}")
            return
        while 0 < (behind := series.rounds - self._rounds) <= min(len(series.updates), RECENT):
            count = min(behind, BATCH)
            start = len(series.updates) - behind
            data = b"[" + b",".join(series.updates[start + number].json for number in range(count)) + b"]"
            self._rounds += count
            await send("rounds", self.id, data)

    async def send_log(self, send: Send) -> None:
        """Send the lines of the log that are new, the last thousand of them at most."""
        log = self._follower.log
        if not log or log[-1].cursor <= self._log:
            return
        fresh = [line for line in log if line.cursor > self._log][-1000:]
        self._log = fresh[-1].cursor
        await send("log", self.id, msgspec.json.encode([line.text for line in fresh]))


def listing_json(hub: Hub) -> bytes:
    """The list of jobs, and whether it is up to date."""
    listing = hub.listing
    return msgspec.json.encode(
        {
            "jobs": [job_fields(job) for job in (listing.jobs if listing else ())],
            "problems": listing.problems if listing else (),
            "unreachable": hub.unreachable,
        }
    )


def job_fields(job: object) -> dict[str, object]:
    """A job as JSON, without its summary, which repeats the rest."""
    return {name: value for name, value in vars(job).items() if name != "summary"}


def state_json(follower: JobFollower) -> bytes:
    """A job's state, and what keeps its data from being whole."""
    return msgspec.json.encode(
        {
            "job": job_fields(follower.job) if follower.job else None,
            "problem": follower.problem,
            "unreachable": follower.unreachable,
            "columns": len(follower.series.columns),
        }
    )


async def _wait(changed: asyncio.Event, send: Send) -> None:
    while True:
        try:
            async with asyncio.timeout(ALIVE_S):
                await changed.wait()
        except TimeoutError:
            await send.alive()
        else:
            return
