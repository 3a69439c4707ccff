"""`Hub`: everything that the pages show, read once for all browsers: the list of jobs, and the jobs that are open."""

from __future__ import annotations

import asyncio
import time

from marless.app.dashboard.bills import BillBook
from marless.app.dashboard.feeds import JobFeed
from marless.app.dashboard.following import JobFollower
from marless.app.dashboard.sources import JobListing, JobSource
from marless.core.errors import MarlessError, OverloadedError

LIST_S = 0.25
"""Seconds between two listings of jobs while a page shows them; more if a listing takes long."""
LIST_SHARE = 10
"""A listing takes at most one part in so many of the time."""
MOST_FOLLOWED = 64
"""Jobs that pages show at once."""
MOST_KEPT = 8
"""Jobs whose curves are kept though no page shows them."""
IDLE_S = 300.0
FIRST_S = 0.3
"""Seconds that a page waits for a long job to be read; then it shows the beginning, and more as it comes."""


class Hub:
    """The state of one dashboard; an async context manager."""

    def __init__(self, source: JobSource) -> None:
        self.source = source
        self.listing: JobListing | None = None
        self.unreachable = ""
        """Why the jobs cannot be listed now; "" if they can."""
        self.list_watchers = 0
        self._listed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._followers: dict[str, JobFollower] = {}
        self._feeds: dict[str, JobFeed] = {}
        self._books: dict[str, BillBook] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Hub:
        self._task = asyncio.create_task(self._keep_listing())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for name in list(self._followers):
            await self._evict(name)

    @property
    def listed(self) -> asyncio.Event:
        """The event that the next change of the list sets."""
        return self._listed

    async def jobs(self) -> JobListing:
        """A fresh list of jobs. Raises what the source does."""
        self._set(await self.source.jobs(), "")
        assert self.listing
        return self.listing

    def want_list(self) -> None:
        """Keep the list up to date from now on, for as long as `list_watchers` is not 0."""
        self._wanted.set()

    async def _keep_listing(self) -> None:
        while True:
            if not self.list_watchers:
                self._wanted.clear()
                await self._wanted.wait()
            began_s = time.monotonic()
            try:
                self._set(await self.source.jobs(), "")
            except MarlessError as error:
                self._set(self.listing, str(error))
            took_s = time.monotonic() - began_s
            await self._evict_idle()
            await asyncio.sleep(max(LIST_S, LIST_SHARE * took_s))

    def _set(self, listing: JobListing | None, unreachable: str) -> None:
        if (listing, unreachable) == (self.listing, self.unreachable):
            return
        self.listing, self.unreachable = listing, unreachable
        event, self._listed = self._listed, asyncio.Event()
        event.set()

    async def follower(self, name: str) -> JobFollower:
        """The follower of a job, with what is recorded unless that is long. Raises NotFoundError, OverloadedError."""
        found = self._followers.get(name)
        if found is None:
            await self._make_room()
            found = self._followers[name] = JobFollower(self.source, name)
        found.used_s = time.monotonic()
        try:
            await found.known(FIRST_S)
        except MarlessError:
            await self._evict(name)
            raise
        return found

    def book(self, follower: JobFollower) -> BillBook:
        """The bills of a job, which are computed from now on."""
        found = self._books.get(follower.name)
        if found is None or found.follower is not follower:
            found = self._books[follower.name] = BillBook(self.source, follower)
        return found

    def feed(self, follower: JobFollower) -> JobFeed:
        """What all streams of a job send."""
        found = self._feeds.get(follower.name)
        if found is None or found.follower is not follower:
            found = self._feeds[follower.name] = JobFeed(follower)
        return found

    async def _make_room(self) -> None:
        await self._evict_idle()
        if len(self._followers) < MOST_FOLLOWED:
            return
        free = [each for each in self._followers.values() if not each.watchers]
        if not free:
            raise OverloadedError(f"{MOST_FOLLOWED} jobs are shown at once, which is the most; close some pages")
        await self._evict(min(free, key=lambda each: each.used_s).name)

    async def _evict_idle(self) -> None:
        now_s = time.monotonic()
        idle = sorted((each for each in self._followers.values() if not each.watchers), key=lambda each: -each.used_s)
        for number, each in enumerate(idle):
            if number >= MOST_KEPT or now_s - each.used_s > IDLE_S:
                await self._evict(each.name)

    async def _evict(self, name: str) -> None:
        self._feeds.pop(name, None)
        if book := self._books.pop(name, None):
            await book.stop()
        if follower := self._followers.pop(name, None):
            await follower.stop()
