"""One host, and one worker on it, as their pool sees them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

import grpc

from marless.fleet.launchers.base import Launch
from marless.rpc.v1 import hosts_pb2

Send = Callable[[hosts_pb2.HostOrder], Awaitable[None]]


class Launched:
    """A worker that a host was ordered to start."""

    def __init__(self, launch: int, worker: str, host: Host) -> None:
        loop = asyncio.get_running_loop()
        self.launch = launch
        self.worker = worker
        self.host = host
        self.answered: asyncio.Future[Launch] = loop.create_future()
        self.ended: asyncio.Future[str] = loop.create_future()

    def answer(self, launch: Launch) -> None:
        """Note what became of the order; the first answer counts."""
        if not self.answered.done():
            self.answered.set_result(launch)

    def end(self, how: str) -> None:
        """Note how it ended; the first report counts."""
        if not self.ended.done():
            self.ended.set_result(how)


class Host:
    """A host between its hello and the end of its stream."""

    def __init__(self, hello: hosts_pb2.HostHello, slots: int, send: Send) -> None:
        loop = asyncio.get_running_loop()
        self.name = hello.host
        self.ticket = hello.ticket
        self.machine = hello.machine
        self.slots = slots
        self.launches: dict[int, Launched] = {}
        self.leaving: asyncio.Future[str] = loop.create_future()
        """Why it gets no more work, as soon as it does not."""
        self.leaves_s = float("inf")
        """When it must be free of workers, by the monotonic clock."""
        self.gone: asyncio.Future[None] = loop.create_future()
        self.idle_since_s = time.monotonic()
        self._send = send
        self._writing = asyncio.Lock()

    @property
    def free(self) -> int:
        """The number of workers that it has room for."""
        closed = self.leaving.done() or self.gone.done()
        return 0 if closed else max(0, self.slots - len(self.launches))

    @property
    def idle_s(self) -> float:
        """Seconds since it had its last worker, or dialled in; 0 while it has one."""
        return 0.0 if self.launches else time.monotonic() - self.idle_since_s

    async def order(self, order: hosts_pb2.HostOrder) -> None:
        """Send it an order; a host whose stream is broken is disconnected."""
        async with self._writing:  # two concurrent writes break a stream
            try:
                await self._send(order)
            except (grpc.aio.BaseError, asyncio.InvalidStateError):
                self.lose()

    def release(self, launch: int) -> None:
        """Forget a worker that has ended, or has never begun."""
        if self.launches.pop(launch, None) and not self.launches:
            self.idle_since_s = time.monotonic()

    def announce_end(self, why: str, within_s: float) -> None:
        """Give it no more work; its workers should go. The first reason stays, the earliest time counts."""
        if within_s:
            self.leaves_s = min(self.leaves_s, time.monotonic() + within_s)
        if not self.leaving.done():
            self.leaving.set_result(why)

    def lose(self) -> None:
        """Disconnect it; it then ends all its workers."""
        if not self.gone.done():
            self.gone.set_result(None)


def slots_of(hello: hosts_pb2.HostHello, given: int, settings: Mapping[str, str]) -> int:
    """How many workers a host takes: as it says itself, as given, or as many as its vCPUs have threads for."""
    threads = int(settings.get("OMP_NUM_THREADS", "1"))
    return hello.slots or given or max(1, int(hello.vcpus) // threads)
