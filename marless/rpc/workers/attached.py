"""A worker as its pool sees it: one stream, from its hello on, and the results that come over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import structlog

from marless.errors import SpecError, UnreachableError
from marless.limits import MAX_NAME
from marless.rpc.requests import check_number, check_text
from marless.rpc.v1 import common_pb2

HELLO_S = 10.0
"""How long a worker's first message may take."""
MAX_UNEXPECTED = 100
"""Results that nobody has asked for, of one stream; a worker may send some late, one that goes on is broken."""
Send = Callable[[common_pb2.PoolMessage], Awaitable[None]]
_log = structlog.get_logger("marless.workers")


class WorkerLostError(Exception):
    """The worker's stream ended while it held a task; the task goes to another worker."""


class WorkerHungError(WorkerLostError):
    """The worker held a task for longer than it may."""


class Worker:
    """One connected worker."""

    def __init__(self, hello: common_pb2.WorkerHello, send: Send, init_s: float) -> None:
        self.hello = hello
        self.send = send
        self.init_s = init_s
        self.invocations = 0
        self.affinity = ""
        self.draining = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running: asyncio.Future[common_pb2.TaskResult] | None = None
        """Set from the moment a task is promised this worker until its result has been taken."""
        self.expected = ("", 0)
        """Id and attempt of the one result that is heard."""
        self.sending: asyncio.Future[None] = self.lost
        """Of its task. To cut a write off breaks the stream, so a task that is given up is sent all the same."""

    def promise(self) -> None:
        """Keep this worker for one task."""
        self.running = asyncio.get_running_loop().create_future()

    def lose(self) -> None:
        """Give it up: its stream ends, and what it still says is not heard."""
        if not self.lost.done():
            self.lost.set_result(None)


async def hello_of(messages: AsyncIterator[common_pb2.WorkerMessage]) -> common_pb2.WorkerHello:
    """The first message of a worker's stream; raises UnreachableError if none comes, SpecError for another one."""
    try:
        async with asyncio.timeout(HELLO_S):
            first = await anext(messages, None)
    except TimeoutError:
        raise UnreachableError(f"no hello came within {HELLO_S:g} s") from None
    if first is None or not first.HasField("hello"):
        raise SpecError("a worker's stream starts with its hello")
    check_text("a worker's name", first.hello.worker)
    return first.hello


async def either(*futures: asyncio.Future[Any]) -> None:  # Any: results of several kinds
    """Wait until one of these is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def listen(worker: Worker, messages: AsyncIterator[common_pb2.WorkerMessage]) -> None:
    """Take results in until the stream ends or the worker is given up.

    Raises SpecError for a worker that says something else, or more than it was asked for.
    """
    unexpected = 0
    while True:
        message = asyncio.ensure_future(anext(messages, None))
        try:
            await either(message, worker.lost)
        finally:
            if not message.done():
                message.cancel()
        if worker.lost.done() or (received := message.result()) is None:
            return
        if not received.HasField("result"):
            raise SpecError("after its hello, a worker sends results and nothing else")
        result = received.result
        if worker.running is None or worker.running.done() or (result.id, result.attempt) != worker.expected:
            if (unexpected := unexpected + 1) > MAX_UNEXPECTED:
                raise SpecError(f"more than {MAX_UNEXPECTED} results that nobody has asked for")
            facts = {"task": result.id[:MAX_NAME], "attempt": result.attempt}
            _log.warning("result.not_expected", **facts, worker=worker.hello.worker)
            continue
        _check(result, worker)
        worker.running.set_result(result)


def _check(result: common_pb2.TaskResult, worker: Worker) -> None:
    """Raise SpecError for numbers that cannot be, which would be billed; set what the pool knows better."""
    run = result.invocation
    run.id, run.attempt, run.worker = result.id, result.attempt, worker.hello.worker
    numbers = {"start": run.start_s, "end": run.end_s, "vcpu_s": run.vcpu_s, "memory_bytes": run.memory_bytes}
    for what, number in numbers.items():
        check_number(f"the {what} of an invocation", number)
    del result.lost[:]
