"""Limits of a service: how many calls it serves at a time, and which calls wait for a turn instead of being refused.

A call is admitted before its request is received, so that one that waits holds no memory for it. There are three kinds:

- a stream lasts as long as its caller: those of workers, for instance. Each such method has a limit of its own;
- a transfer waits for its turn. A few are served at a time, because each holds a part of its data; jobs take turns;
- all others: beyond `MAX_CALLS` of them, further ones are refused for now.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from marless.core.errors import OverloadedError
from marless.core.limits import MAX_NAME
from marless.rpc.errors import abort
from marless.rpc.fair_queue import FairQueue
from marless.rpc.handlers import Handler

MAX_CALLS = 512
"""Calls at a time that neither last as long as their caller nor wait for a turn."""
MAX_WAITING = 8192
"""Transfers of one method that wait for their turn; further ones are refused for now."""
JOB_KEY = "marless-job"
"""Metadata of a transfer: the job that it is for."""
Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods


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
                await turns.take(_job_of(handler_call_details))
                _after_this_call(turns.release)
            else:
                self._count(name)
        except OverloadedError as error:
            return _refusal(error)
        return await continuation(handler_call_details)

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


def _job_of(details: grpc.HandlerCallDetails) -> str:
    job = dict(details.invocation_metadata or ()).get(JOB_KEY, "")
    return str(job)[:MAX_NAME]


def _refusal(error: OverloadedError) -> Handler:
    async def refuse(_requests: AsyncIterator[bytes], context: Context) -> None:
        await abort(context, error)

    # This kind of handler serves calls of all four kinds: they look alike on the wire, and the answer is only a status.
    return grpc.stream_stream_rpc_method_handler(refuse)
