"""The pool's side of one worker's stream: its hello message, and the task results that it sends."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from marless.core.errors import SpecError, UnreachableError
from marless.core.limits import MAX_NAME
from marless.core.log import structlog
from marless.core.machine import Machine
from marless.core.stopwatch import Stopwatch
from marless.fleet.machines import Presence
from marless.rpc.requests import check_number, check_text
from marless.rpc.v1 import common_pb2

HELLO_S = 10.0
"""Seconds within which a worker's first message must arrive."""
MAX_UNEXPECTED = 100
"""Most unexpected results in one stream: a few may be late, but a worker that sends more is faulty."""
Send = Callable[[common_pb2.PoolMessage], Awaitable[None]]
_log = structlog.get_logger("marless.workers")


class WorkerLostError(Exception):
    """The worker's stream ended while it ran a task; the task is given to another worker."""


class WorkerHungError(WorkerLostError):
    """The worker exceeded the time limit of a task."""


class Worker:
    """One connected worker."""

    def __init__(self, hello: common_pb2.WorkerHello, send: Send, init_s: float, presence: Presence) -> None:
        self.hello = hello
        self.send = send
        self.init_s = init_s
        self.presence = presence
        """Its machine."""
        self.job = ""
        """The job of its task; "" without one."""
        self.tenant = ""
        """The job to which it belongs, see `marless.fleet.tenancy`; "" for none."""
        self.retired = False
        """True once it does not count among that job's workers any more."""
        self.tenant_since_s = 0.0
        self.idle_since_s = 0.0
        """Both by the monotonic clock."""
        self.connected = Stopwatch.start()
        self.ready_s = 0.0
        """Seconds from its connection until its first task; 0 before."""
        self.invocations = 0
        self.draining = False
        self._unexpected = 0
        """Results that nobody has asked for."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running: asyncio.Future[common_pb2.TaskResult] | None = None
        """The result of its task; set from the moment a task is assigned until its result has been processed."""
        self.expected = ("", 0)
        """Id and attempt of the only result that is accepted."""
        self.sending: asyncio.Future[None] = self.lost
        """The write of its task to the stream. Never cancelled, because an interrupted write breaks the stream."""

    @property
    def is_running(self) -> bool:
        """True while it has a task and is connected."""
        return self.running is not None and not self.running.done() and not self.lost.done()

    def promise(self) -> None:
        """Reserve this worker for one task."""
        self.running = asyncio.get_running_loop().create_future()

    def lose(self) -> None:
        """Disconnect it: its stream ends, and later messages are ignored."""
        if not self.lost.done():
            self.lost.set_result(None)

    def hear(self, message: common_pb2.WorkerMessage) -> None:
        """Take a message after its hello: the result of its task.

        Raises SpecError for other messages, for more than `MAX_UNEXPECTED` unexpected results, and for impossible
        measurements.
        """
        if not message.HasField("result"):
            raise SpecError("after its hello, a worker sends results and nothing else")
        result = message.result
        if self.running is None or self.running.done() or (result.id, result.attempt) != self.expected:
            self._unexpected += 1
            if self._unexpected > MAX_UNEXPECTED:
                raise SpecError(f"more than {MAX_UNEXPECTED} results that nobody has asked for")
            facts = {"task": result.id[:MAX_NAME], "attempt": result.attempt}
            _log.warning("result.not_expected", **facts, worker=self.hello.worker)
            return
        _check(result, self)
        self.running.set_result(result)


async def hello_of(messages: AsyncIterator[common_pb2.WorkerMessage]) -> common_pb2.WorkerHello:
    """Read a worker's hello, the first message of its stream.

    Raises UnreachableError if none arrives in time, SpecError for any other message.
    """
    try:
        async with asyncio.timeout(HELLO_S):
            first = await anext(messages, None)
    except TimeoutError:
        raise UnreachableError(f"no hello came within {HELLO_S:g} s") from None
    if first is None or not first.HasField("hello"):
        raise SpecError("a worker's stream starts with its hello")
    check_text("a worker's name", first.hello.worker)
    return first.hello


def machine_of(hello: common_pb2.WorkerHello) -> Machine:
    """The machine of a worker, which is its host's name if it says nothing; raises SpecError if it cannot be one."""
    told = hello.machine
    values = {field.name: getattr(told, field.name) for field in told.DESCRIPTOR.fields}
    # A price of 0 is not the same as none.
    values["usd_h"] = told.usd_h if told.HasField("usd_h") else None
    machine = Machine(**values)
    return machine if machine.id else replace(machine, id=hashlib.sha256(hello.host.encode()).hexdigest()[:12])


async def either(*futures: asyncio.Future[Any]) -> None:  # Any: results of several kinds
    """Wait until any of these futures is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def listen(worker: Worker, messages: AsyncIterator[common_pb2.WorkerMessage]) -> None:
    """Receive results until the stream ends or the worker is disconnected; raises the errors of `Worker.hear`."""
    hearing = asyncio.create_task(_hear_all(worker, messages))
    try:
        await either(hearing, worker.lost)
    finally:
        hearing.cancel()
    if hearing.done():
        hearing.result()


async def _hear_all(worker: Worker, messages: AsyncIterator[common_pb2.WorkerMessage]) -> None:
    async for message in messages:
        if worker.lost.done():
            return
        worker.hear(message)


def _check(result: common_pb2.TaskResult, worker: Worker) -> None:
    """Raise SpecError for impossible measurements, which would be billed; overwrite the fields that the pool knows."""
    run = result.invocation
    run.id, run.attempt, run.worker = result.id, result.attempt, worker.hello.worker
    run.machine = worker.presence.machine.id
    numbers = {"start": run.start_s, "end": run.end_s, "vcpu_s": run.vcpu_s, "memory_bytes": run.memory_bytes}
    for what, number in numbers.items():
        check_number(f"the {what} of an invocation", number)
    # Only the pool adds attempts that were lost: a worker could have those of others billed.
    del result.lost[:]
