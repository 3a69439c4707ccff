"""The workers that are connected to a pool: the stream of one, who waits for which to come or go, and which are idle.

An arrival or a departure wakes only those that wait for this worker, so that its cost does not grow with the pool.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping
from dataclasses import replace
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from marless.core.errors import SpecError, UnreachableError
from marless.core.limits import MAX_NAME
from marless.core.log import structlog
from marless.core.machine import Machine
from marless.core.stopwatch import Stopwatch
from marless.fleet.machines import Presence
from marless.rpc.requests import check_number, check_text
from marless.rpc.v1 import common_pb2 as pb
from marless.rpc.v1 import hosts_pb2

HELLO_S = 10.0
"""Seconds within which the first message of a worker or a host must arrive."""
MAX_UNEXPECTED = 100
"""Most unexpected results in one stream: a few may be late, but a worker that sends more is faulty."""
Greeting = TypeVar("Greeting", pb.WorkerMessage, hosts_pb2.HostMessage)
Send = Callable[[pb.PoolMessage], Awaitable[None]]
_log = structlog.get_logger("marless.workers")


class WorkerLostError(Exception):
    """The worker's stream ended while it ran a task; the task is given to another worker."""


class WorkerHungError(WorkerLostError):
    """The worker exceeded the time limit of a task."""


class Worker:
    """One connected worker."""

    def __init__(self, hello: pb.WorkerHello, send: Send, init_s: float, presence: Presence) -> None:
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
        self.drain = ""
        """Why it gets no further task, and exits; "" if it is not being drained."""
        self.memory_bytes = 0
        """Peak resident size at the end of its last invocation; 0 before."""
        self._unexpected = 0
        """Results that nobody has asked for."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running: asyncio.Future[pb.TaskResult] | None = None
        """The result of its task; set from the moment a task is assigned until its result has been processed."""
        self.expected = ("", 0)
        """Id and attempt of the only result that is accepted."""
        self.sending: asyncio.Future[None] = self.lost
        """The write of its task to the stream. Never cancelled, because an interrupted write breaks the stream."""

    @property
    def lacks_gpu(self) -> bool:
        """True if its machine has a GPU that it cannot use."""
        return self.hello.gpus > 0 and self.hello.device == "cpu"

    def lose(self) -> None:
        """Disconnect it: its stream ends, and later messages are ignored."""
        if not self.lost.done():
            self.lost.set_result(None)

    def hear(self, message: pb.WorkerMessage) -> None:
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
        self.memory_bytes = result.invocation.memory_bytes
        self.running.set_result(result)


async def first_of(messages: AsyncIterator[Greeting], who: str) -> Greeting:
    """The first message of a stream, which holds a hello; `who` sends it, for messages.

    Raises UnreachableError if none arrives in time, SpecError for any other message.
    """
    try:
        async with asyncio.timeout(HELLO_S):
            first = await anext(messages, None)
    except TimeoutError:
        raise UnreachableError(f"no hello came within {HELLO_S:g} s") from None
    if first is None or not first.HasField("hello"):
        raise SpecError(f"{who}'s stream starts with its hello")
    return first


async def hello_of(messages: AsyncIterator[pb.WorkerMessage]) -> pb.WorkerHello:
    """Read a worker's hello; raises the errors of `first_of`."""
    hello = (await first_of(messages, "a worker")).hello
    check_text("a worker's name", hello.worker)
    return hello


def machine_of(hello: pb.WorkerHello) -> Machine:
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


async def listen(worker: Worker, messages: AsyncIterator[pb.WorkerMessage]) -> None:
    """Receive results until the stream ends or the worker is disconnected; raises the errors of `Worker.hear`."""
    hearing = asyncio.create_task(_hear_all(worker, messages))
    try:
        await either(hearing, worker.lost)
    finally:
        hearing.cancel()
    if hearing.done():
        hearing.result()


async def _hear_all(worker: Worker, messages: AsyncIterator[pb.WorkerMessage]) -> None:
    async for message in messages:
        if worker.lost.done():
            return
        worker.hear(message)


def _check(result: pb.TaskResult, worker: Worker) -> None:
    """Raise SpecError for impossible measurements, which would be billed; overwrite the fields that the pool knows."""
    run = result.invocation
    run.id, run.attempt, run.worker = result.id, result.attempt, worker.hello.worker
    run.machine = worker.presence.machine.id
    numbers = {"start": run.start_s, "end": run.end_s, "vcpu_s": run.vcpu_s, "memory_bytes": run.memory_bytes}
    for what, number in (numbers | {"init_cpu_s": run.init_cpu_s}).items():
        check_number(f"the {what} of an invocation", number)
    # Only the pool adds attempts that were lost: a worker could have those of others billed.
    del result.lost[:]


Waits = MutableMapping[str, asyncio.Event]


class ConnectedWorkers(dict[str, Worker]):
    """The connected workers by name, in the order in which they connected."""

    def __init__(self) -> None:
        super().__init__()
        # An event lasts as long as somebody waits for it.
        self._arrivals: Waits = WeakValueDictionary()
        self._departures: Waits = WeakValueDictionary()
        self._any = asyncio.Event()

    def arrive(self, name: str, worker: Worker) -> None:
        """Note that a worker has connected; it replaces another one of its name."""
        self[name] = worker
        self._any.set()
        if waiting := self._arrivals.pop(name, None):
            waiting.set()

    def release(self, name: str, worker: Worker) -> None:
        """Note that a worker's stream has ended, unless another worker has its name by now."""
        if self.get(name) is not worker:
            return
        del self[name]
        if not self:
            self._any.clear()
        if waiting := self._departures.pop(name, None):
            waiting.set()

    async def present(self, names: Iterable[str]) -> None:
        """Wait until all of these workers are connected at the same time."""
        wanted = tuple(names)
        # One that was there may have gone while another one was waited for.
        while not all(name in self for name in wanted):
            for name in wanted:
                while name not in self:
                    await self._arrivals.setdefault(name, asyncio.Event()).wait()

    async def absent(self, name: str) -> None:
        """Wait until this worker is not connected."""
        while name in self:
            await self._departures.setdefault(name, asyncio.Event()).wait()

    async def some(self) -> None:
        """Wait until any worker is connected."""
        while not self:
            await self._any.wait()


class LastWorkers:
    """The worker that had the last task of each affinity, for the `most` affinities used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._workers: OrderedDict[str, Worker] = OrderedDict()
        self._known: defaultdict[Worker, set[str]] = defaultdict(set)

    def find(self, affinity: str) -> Worker | None:
        """The worker that had the last task of this affinity; None if there is none, or it is gone."""
        return self._workers.get(affinity)

    def put(self, affinity: str, worker: Worker) -> None:
        """Note that a worker gets a task of this affinity."""
        self._discard(affinity)
        self._workers[affinity] = worker
        self._known[worker].add(affinity)
        while len(self._workers) > self._most:
            self._discard(next(iter(self._workers)))

    def release(self, worker: Worker) -> None:
        """Forget a worker that is gone."""
        for affinity in self._known.pop(worker, ()):
            del self._workers[affinity]

    def _discard(self, affinity: str) -> None:
        if worker := self._workers.pop(affinity, None):
            self._known[worker].discard(affinity)


class Idle:
    """The idle workers, in the order in which they became idle."""

    def __init__(self) -> None:
        self._all: OrderedDict[Worker, None] = OrderedDict()
        self._of: defaultdict[str, OrderedDict[Worker, None]] = defaultdict(OrderedDict)
        """Those of each job; under "" those that belong to none."""

    def __contains__(self, worker: Worker) -> bool:
        return worker in self._all

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all)

    def add(self, worker: Worker) -> None:
        """Note that a worker has become idle."""
        self._all[worker] = self._of[worker.tenant][worker] = None

    def remove(self, worker: Worker) -> None:
        """Note that a worker is not idle any more; nothing happens if it was not."""
        if worker in self._all:
            del self._all[worker], self._of[worker.tenant][worker]
            if not self._of[worker.tenant]:
                del self._of[worker.tenant]

    def find(self, job: str) -> Worker | None:
        """The worker of a job that has been idle longest, else one that belongs to none; None if there is neither."""
        return next((next(iter(self._of[of])) for of in (job, "") if of in self._of), None)

    def of_others(self, job: str) -> Iterator[Worker]:
        """The workers that belong to other jobs, the one that has been idle longest first."""
        return (worker for worker in self._all if worker.tenant not in (job, ""))
