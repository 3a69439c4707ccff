"""Limits of a service: how many calls it serves at a time, which of them wait for a turn, and how many bytes they hold.

A call is admitted before its request is received, so that one that waits holds no memory for it. There are three kinds:

- a stream lasts as long as its caller: those of workers, for instance. Each such method has a limit of its own;
- a transfer waits for its turn. A few are served at a time, because each holds a part of its data; jobs take turns;
- all others: beyond `MAX_CALLS` of them, further ones are refused for now.

What an admitted transfer brings is held within a `ByteBudget`, for whose bytes jobs queue, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import grpc

from marless.core.errors import OverloadedError
from marless.core.limits import MAX_NAME
from marless.rpc.errors import abort
from marless.rpc.requests import Handler

Waiter = TypeVar("Waiter", bound=Hashable)
MAX_CALLS = 512
"""Calls at a time that neither last as long as their caller nor wait for a turn."""
MAX_WAITING = 8192
"""Transfers of one method that wait for their turn; further ones are refused for now."""
JOB_KEY = "marless-job"
"""Metadata of a transfer: the job that it is for."""
Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods
MAX_REQUESTS_WAITING = 1024
"""Requests for bytes that wait."""


class FairQueue(Generic[Waiter]):
    """A fair queue of waiters. Jobs are served in turn, however many waiters each has; all operations are O(1)."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, OrderedDict[Waiter, None]] = OrderedDict()
        """Jobs in the order of their turns; none is without waiters."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, job: str, waiter: Waiter, *, again: bool = False) -> None:
        """Enqueue a waiter; with `again`, before the other waiters of its job."""
        waiters = self._jobs.setdefault(job, OrderedDict())
        waiters[waiter] = None
        waiters.move_to_end(waiter, last=not again)
        self._count += 1

    @property
    def jobs(self) -> KeysView[str]:
        """The jobs with waiters, in the order of their turns."""
        return self._jobs.keys()

    def waiting(self, job: str) -> int:
        """How many waiters a job has."""
        return len(self._jobs.get(job, ()))

    def take(self, job: str = "") -> Waiter:
        """Dequeue the next waiter, of this job if one is given, whose turn it then was; raises KeyError without one."""
        job = job or next(iter(self._jobs), "")
        waiters = self._jobs.pop(job)
        waiter, _ = waiters.popitem(last=False)
        if waiters:
            # At the end, because it is the turn of the other jobs now.
            self._jobs[job] = waiters
        self._count -= 1
        return waiter

    def discard(self, job: str, waiter: Waiter) -> bool:
        """Remove a waiter; returns whether it was still queued."""
        waiters = self._jobs.get(job, OrderedDict())
        if waiter not in waiters:
            return False
        del waiters[waiter]
        if not waiters:
            del self._jobs[job]
        self._count -= 1
        return True


@dataclass(frozen=True)
class Streams:
    """The limit of a method whose calls last as long as their caller."""

    most: Callable[[], int]
    """How many there may be now."""


@dataclass(frozen=True)
class Transfers:
    """The limit of a method whose calls wait for their turn."""

    at_once: int


Limits = Mapping[str, Streams | Transfers]
"""Limits by the name of the method; all other methods share `MAX_CALLS`."""


@dataclass
class FairSemaphore:
    """Turns at one kind of transfer, fair between jobs."""

    free: int
    waiting: FairQueue[asyncio.Future[None]] = field(default_factory=FairQueue)

    async def take(self, job: str) -> None:
        """Wait for a turn; raises OverloadedError if too many wait already."""
        # A free turn means that nobody waits, because `release` hands a turn over instead of freeing it.
        if self.free:
            self.free -= 1
            return
        if len(self.waiting) >= MAX_WAITING:
            raise OverloadedError(f"{MAX_WAITING} transfers wait for their turn already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.add(job, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not self.waiting.discard(job, turn) and not turn.cancelled():
                self.release()  # it had its turn in the moment in which its caller went away
            raise

    def release(self) -> None:
        """End a turn; the next one begins."""
        while self.waiting:
            turn = self.waiting.take()
            # Its caller may have been cancelled a moment ago, and not have left the queue yet.
            if not turn.done():
                turn.set_result(None)
                return
        self.free += 1


class AdmissionInterceptor(grpc.aio.ServerInterceptor):
    """Admits calls within the limits of the service."""

    def __init__(self, most_calls: int = MAX_CALLS) -> None:
        self._most_calls = most_calls
        self._running: Counter[str] = Counter()
        """Calls by kind: the method's name for streams, "" for those without a limit of their own."""
        self._limits: Limits = {}
        self._turns: dict[str, FairSemaphore] = {}

    def set(self, limits: Limits) -> None:
        """Set the limits of single methods, before the first call."""
        self._limits = limits
        self._turns = {
            name: FairSemaphore(each.at_once) for name, each in limits.items() if isinstance(each, Transfers)
        }

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Pass a call on when it is its turn, or refuse it. It counts until the task that serves it has ended."""
        name = str(handler_call_details.method).rpartition("/")[2]
        try:
            if turns := self._turns.get(name):
                job = dict(handler_call_details.invocation_metadata or ()).get(JOB_KEY, "")
                await turns.take(str(job)[:MAX_NAME])
                _after_this_call(turns.release)
            else:
                self._count(name)
        except OverloadedError as error:
            refused = error
        else:
            return await continuation(handler_call_details)

        async def refuse(_requests: AsyncIterator[bytes], context: Context) -> None:
            await abort(context, refused)

        # This kind of handler serves calls of all four kinds: they look alike on the wire, and the answer is only a
        # status.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _count(self, name: str) -> None:
        """Count one more call of its kind; raises OverloadedError beyond its limit."""
        limit = self._limits.get(name)
        kind, most = (name, limit.most()) if isinstance(limit, Streams) else ("", self._most_calls)
        if self._running[kind] >= most:
            what = f"streams of {kind}" if kind else "calls"
            raise OverloadedError(f"no room for more {what}: {most} are open already")
        self._running[kind] += 1
        _after_this_call(lambda: self._running.subtract([kind]))


def _after_this_call(then: Callable[[], None]) -> None:
    """gRPC serves a call, from its interceptors to its last message, in one task."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda _: then())


@dataclass(eq=False)
class _Waiter:
    job: str
    size: int
    admitted: asyncio.Future[None]
    passed_by: set[str] = field(default_factory=set)
    """Jobs that arrived later but were admitted earlier; each may do so once."""


class ByteBudget:
    """A budget of `limit_bytes` bytes shared by jobs; a single job may use all of it while no other job asks.

    Requests are admitted in full, first come first served, with one exception: a request that keeps its job within its
    fair share (the limit divided by the number of jobs that hold or want bytes) may pass requests that would exceed
    their job's share, each of them once per job. So a large request waits for at most one later request of every other
    job, and small requests do not wait for a large one.
    """

    def __init__(self, place: str, option: str, limit_bytes: int, *, waiting: int = MAX_REQUESTS_WAITING) -> None:
        self.limit_bytes = limit_bytes
        self._place = place
        self._option = option
        self._most_waiting = waiting
        self.aside_bytes = 0
        """Bytes of the limit that are reserved for other uses, see `set_aside`."""
        self._held: Counter[str] = Counter()
        """Bytes by job; only jobs that hold bytes."""
        self._waiting: list[_Waiter] = []

    @property
    def held_bytes(self) -> int:
        """Bytes held by jobs."""
        return self._held.total()

    @property
    def free_bytes(self) -> int:
        """Bytes of the limit that are free."""
        return max(0, self.limit_bytes - self.held_bytes - self.aside_bytes)

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    def takes(self, size: int) -> bool:
        """True if so many bytes are free and no request waits for them."""
        return not self._waiting and size <= self.free_bytes

    def set_aside(self, held_bytes: int) -> None:
        """Set the number of bytes of the limit that are reserved for other uses."""
        self.aside_bytes = held_bytes
        self._admit()

    def hold(self, job: str, size: int) -> None:
        """Hold bytes without queueing; the caller has checked that they are free."""
        self._held[job] += size
        # A job without bytes would still count in the fair shares of the others.
        if not self._held[job]:
            del self._held[job]

    def release(self, job: str, size: int) -> None:
        """Release bytes of a job, and admit the requests that fit now."""
        self.hold(job, -size)
        self._admit()

    async def take(self, job: str, size: int, *, wait_s: float | None = None) -> None:
        """Wait until the job is admitted, then hold the bytes until `release`.

        Raises OverloadedError if that takes longer than `wait_s`, or if too many requests wait already.
        """
        if len(self._waiting) >= self._most_waiting:
            raise self.full(size, f"{len(self._waiting)} uploads wait already")
        waiter = _Waiter(job, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._admit()
        try:
            async with asyncio.timeout(wait_s):
                await waiter.admitted
        except BaseException as error:
            # Also if it is cancelled: who goes away leaves neither a place in the queue nor the bytes that it was just
            # given.
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._admit()  # it may have kept others waiting
            else:
                self.release(job, size)
            if isinstance(error, TimeoutError):
                raise self.full(size, "others hold it for long") from None
            raise

    def full(self, size: int, why: str) -> OverloadedError:
        """The error for a request that cannot be admitted now."""
        held = f"{self.held_bytes:,} bytes are in use"
        if self.aside_bytes:
            held += f" beside {self.aside_bytes:,} of replays"
        return OverloadedError(
            f"no room in the {self._place}: {held}, {size:,} more exceed {self.limit_bytes:,} ({self._option}), "
            f"and {why}"
        )

    def _admit(self) -> None:
        ahead: list[_Waiter] = []
        for waiter in tuple(self._waiting):
            if waiter.size <= self.free_bytes and (not ahead or self._may_pass(waiter, ahead)):
                for other in ahead:
                    other.passed_by.add(waiter.job)
                self._waiting.remove(waiter)
                self.hold(waiter.job, waiter.size)
                waiter.admitted.set_result(None)
            else:
                ahead.append(waiter)

    def _may_pass(self, waiter: _Waiter, ahead: list[_Waiter]) -> bool:
        share = self.limit_bytes / len(self._held.keys() | {each.job for each in self._waiting})
        return self._held[waiter.job] + waiter.size <= share and all(
            self._held[other.job] + other.size > share and waiter.job not in other.passed_by | {other.job}
            for other in ahead
        )
