"""`EventStreams`: server-sent events, the list of jobs and what happens in one; a stream resumes at the id that it is
given. `JobFeed`: what the pages that show a job are sent. Each text is encoded once, and goes to all streams at once.

There is no queue for a slow browser: each stream has a position in what the hub keeps, and takes what is there when its
connection has room. One that has fallen too far behind is told to load its curves anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from marless.app.dashboard.following import JobFollower
from marless.app.dashboard.series import RECENT
from marless.core.errors import OverloadedError

if TYPE_CHECKING:
    from marless.app.dashboard.hub import Hub

ALIVE_S = 10.0
"""Seconds after which a silent stream says that it is alive."""
ALIVE = b": alive\n\n"
BATCH = 64
"""Rounds of one event."""
FASTEST_S = 0.25
"""Seconds between two turns of a feed: quick rounds come several at a time."""
LOADING_S = 0.5
"""The same while a long job is being read, of which pages show more each time."""
MOST_LINES = 1000
"""Newest lines of a log in one event."""
MOST_POSITIONS = 16
"""Positions whose next events are kept for other streams: nearly always all streams have the same one."""


@dataclass(frozen=True, kw_only=True)
class StreamPosition:
    """How far one browser has got in a job."""

    generation: int
    rounds: int
    log: int
    """Cursor of the log."""
    marks: int = 0
    state: bytes = b""
    """The state that it knows, as JSON."""

    @classmethod
    def parse(cls, identity: str, follower: JobFollower) -> StreamPosition:
        """The position of an event's id; for anything else the present one, with the log from its beginning."""
        parts = identity.split(".")
        if len(parts) == 3 and all(part.isascii() and part.isdecimal() and len(part) < 16 for part in parts):
            generation, rounds, log = map(int, parts)
            return cls(generation=generation, rounds=rounds, log=log)
        return cls(generation=follower.generation, rounds=follower.series.rounds, log=0)

    def event(self, name: str, data: bytes) -> bytes:
        """An event that leads to this position, from which a browser goes on after a break."""
        head = f"event: {name}\nid: {self.generation}.{self.rounds}.{self.log}\ndata: "
        return head.encode() + data + b"\n\n"  # JSON has no line feed, which would end the event


class JobFeed:
    """The events of one job, for all streams of it. It takes turns while there is one: see `turn`."""

    def __init__(self, follower: JobFollower) -> None:
        self.follower = follower
        self._turn = asyncio.Event()
        self._changes = -1
        """At which of the follower's changes `_known` and `_state` were made."""
        self._known: dict[StreamPosition, tuple[bytes, StreamPosition]] = {}
        self._state = b""
        self.silent = False
        """True if nothing has happened between the last two turns."""
        self._task: asyncio.Task[None] | None = None

    @property
    def turn(self) -> asyncio.Event:
        """The event that the next turn sets; take it before looking. All streams send at once, in one go: the process
        wakes four times a second, whether one browser looks on or fifty.
        """
        return self._turn

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Take turns as long as any of these contexts lasts."""
        self.follower.watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._take_turns())
        try:
            yield
        finally:
            self.follower.watchers -= 1
            if not self.follower.watchers and self._task:
                self._task.cancel()
                self._task = None

    async def _take_turns(self) -> None:
        follower = self.follower
        while True:
            changed = follower.changed
            if self._changes == follower.changes:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ALIVE_S):
                        await changed.wait()
            self.silent = self._changes == follower.changes
            event, self._turn = self._turn, asyncio.Event()
            event.set()
            await asyncio.sleep(FASTEST_S if follower.loaded.is_set() else LOADING_S)

    def after(self, position: StreamPosition) -> tuple[bytes, StreamPosition]:
        """The events after a position, and the position after them; b"" if there are none.

        They have at most `BATCH` rounds: ask again. What streams at one position get is made once.
        """
        if self._changes != self.follower.changes:
            self._changes, self._state = self.follower.changes, state_json(self.follower)
            self._known.clear()
        found = self._known.get(position)
        if found is None:
            if len(self._known) == MOST_POSITIONS:
                self._known.clear()
            found = self._known[position] = self._made(position)
        return found

    def _made(self, at: StreamPosition) -> tuple[bytes, StreamPosition]:
        series, sent = self.follower.series, list[bytes]()
        if at.marks != series.marked:
            at = replace(at, marks=series.marked)
            sent.append(at.event("marks", msgspec.json.encode(list(series.marks))))
        behind = series.rounds - at.rounds
        if at.generation != self.follower.generation or not 0 <= behind <= min(len(series.updates), RECENT):
            at = replace(at, generation=self.follower.generation, rounds=series.rounds)
            sent.append(at.event("reset", b"{}"))
        elif behind:
            first, count = len(series.updates) - behind, min(behind, BATCH)
            fresh = [series.updates[first + number].json for number in range(count)]
            at = replace(at, rounds=at.rounds + count)
            sent.append(at.event("rounds", b"[" + b",".join(fresh) + b"]"))
            if count < behind:
                return b"".join(sent), at
        log = self.follower.log
        if log and log[-1].cursor > at.log:
            lines = [line for line in log if line.cursor > at.log][-MOST_LINES:]
            at = replace(at, log=lines[-1].cursor)
            sent.append(at.event("log", msgspec.json.encode([line.text for line in lines])))
        # Last, so that a page has all rounds of a job that it is told has ended.
        if self._state != at.state:
            at = replace(at, state=self._state)
            sent.append(at.event("state", self._state))
        return b"".join(sent), at


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


def job_fields(job: object) -> dict[str, object]:
    """A job as JSON, without its summary, which repeats the rest."""
    return {name: value for name, value in vars(job).items() if name != "summary"}


MOST_STREAMS = 256
"""EventStreams of all browsers together."""


class EventStreams:
    """The open streams of one dashboard."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._open = 0
        self._list: tuple[asyncio.Event | None, bytes] = None, b""
        """The newest list as an event, and the change that will make it old."""

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        """The list of jobs, whole, whenever it has changed."""
        hub = self._hub
        async with self._opened(request) as response:
            hub.list_watchers += 1
            hub.want_list()
            try:
                while True:
                    changed = hub.listed
                    if hub.listing or hub.unreachable:
                        # The list of jobs, encoded once for all streams.
                        if self._list[0] is not self._hub.listed:
                            self._list = self._hub.listed, b"event: jobs\ndata: " + listing_json(self._hub) + b"\n\n"
                        await response.write(self._list[1])
                    while not await _within(changed, ALIVE_S):
                        await response.write(ALIVE)  # so that both sides see a broken connection
            finally:
                hub.list_watchers -= 1
        return response

    async def job(self, request: web.Request) -> web.StreamResponse:
        """What happens in a job: its state, rounds and log. An id is generation, rounds, and cursor of the log."""
        follower = await self._hub.follower(request.match_info["job"])
        feed = self._hub.feed(follower)
        position = StreamPosition.parse(request.headers.get("Last-Event-ID", ""), follower)
        async with self._opened(request) as response, feed.watched():
            while True:
                turn = feed.turn
                data, position = feed.after(position)
                if not data and feed.silent:
                    await response.write(ALIVE)
                while data:
                    await response.write(data)
                    data, position = feed.after(position)
                await turn.wait()
        return response

    @asynccontextmanager
    async def _opened(self, request: web.Request) -> AsyncIterator[web.StreamResponse]:
        if self._open >= MOST_STREAMS:
            raise OverloadedError(f"{MOST_STREAMS} pages are open, which is the most; close some")
        self._open += 1
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
            await response.prepare(request)
            # A stream ends by its browser, which a write may notice before this task is cancelled.
            with suppress(ConnectionError):
                yield response
        finally:
            self._open -= 1


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


async def _within(changed: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await changed.wait()
    except TimeoutError:
        return False
    return True
