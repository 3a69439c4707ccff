"""The pool's side of hosts: which have dialled in, what room they have, and the pool's workers on them."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Protocol, runtime_checkable

import grpc

from marless.core.errors import SpecError, UnauthenticatedError, shown
from marless.core.limits import MAX_ACTORS, MAX_NAME
from marless.core.log import structlog
from marless.fleet.launchers.base import Launch, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.workers import either, first_of
from marless.rpc.admission import Streams
from marless.rpc.requests import check_number, check_text
from marless.rpc.v1 import hosts_pb2 as pb

START_S = 30.0
"""Seconds in which a host must answer an order; the first one imports what all its workers need."""
END_S = 6.0
"""Seconds in which a host must have killed a worker; then it is disconnected, and ends all its workers."""
CHECK_S = 1.0
"""Seconds between checks for a new token to send to hosts."""
HOSTS = Streams(lambda: 2 * MAX_ACTORS)
"""Streams of hosts that a pool serves; one that reconnects may come before its old stream has ended."""
Messages = AsyncIterator[pb.HostMessage]
_log = structlog.get_logger("marless.hosts")


@runtime_checkable
class Hosting(Protocol):
    """A launcher whose workers run on hosts."""

    async def attach(self, messages: Messages, send: Send) -> None:
        """Serve one host's stream until it ends."""
        ...


async def attach(launcher: object, messages: Messages, send: Send) -> None:
    """Serve a host's stream; the body of a pool's Host RPC. Raises SpecError if the launcher has no use for hosts."""
    if not isinstance(launcher, Hosting):
        raise SpecError("the launcher of this pool uses no hosts; give the pool --launcher ec2,…")
    await launcher.attach(messages, send)


class Hosts:
    """The hosts of a pool. `changed` is called when a host comes, goes, or gets or loses work."""

    def __init__(self, program: WorkerProgram, changed: Callable[[], None], slots: int = 0) -> None:
        """`slots` is the number of workers of a host that does not say its own; 0: as many as its vCPUs allow."""
        self._program = program
        self._changed = changed
        self._slots = slots
        self._serials = itertools.count(1)
        self.connected: dict[str, Host] = {}
        """The hosts that are connected, by name."""
        self._workers: dict[str, Launched] = {}

    @property
    def free(self) -> int:
        """The number of workers that there is room for."""
        return sum(host.free for host in self.connected.values())

    async def attach(self, messages: Messages, send: Send) -> None:
        """Serve a host's stream until it ends.

        Raises SpecError for a host that cannot be used, UnauthenticatedError for one that may not use its name,
        UnreachableError if it says nothing.
        """
        host = self._checked(await _hello_of(messages), send)
        # Before it is admitted and gets workers: to start one, it needs their program, and then their token.
        of_all = self._program
        ordered = pb.HostProgram(module=of_all.module, arguments=of_all.arguments, settings=of_all.settings)
        await host.order(pb.HostOrder(program=ordered))
        following = asyncio.create_task(self._keep_token(host, await self._send_token(host)))
        try:
            if before := self.connected.get(host.name):
                before.lose()
            self.connected[host.name] = host
            _log.info("host.connected", host=host.name, slots=host.slots, machine=host.machine)
            self._changed()
            await self._listen(host, messages)
        finally:
            following.cancel()
            self._lost(host)

    async def start(self, order: LaunchOrder) -> Launch:
        """Start a worker on the fullest host that has room, so that others become idle."""
        with_room = [host for host in self.connected.values() if host.free]
        if not with_room:
            return Launch(LaunchOutcome.REFUSED, "no host has room")
        host = min(with_room, key=lambda each: (each.free, each.name))
        launched = Launched(next(self._serials), order.worker, host)
        # Before the order is sent: while that waits, its place must not be given to another worker.
        host.launches[launched.launch] = self._workers[order.worker] = launched
        self._changed()
        start = pb.StartWorker(
            launch=launched.launch, worker=order.worker, ticket=order.ticket, arguments=order.arguments
        )
        await host.order(pb.HostOrder(start=start))
        return await self._answer(launched)

    async def observe(self, worker: str) -> str:
        """Wait until a worker, or its host, has ended."""
        found = self._workers.get(worker)
        return await asyncio.shield(found.ended) if found else "not started"

    async def leaving(self, worker: str) -> str:
        """Wait until a worker's machine is about to end; returns why."""
        found = self._workers.get(worker)
        return await asyncio.shield(found.host.leaving if found else asyncio.get_running_loop().create_future())

    async def drain(self, worker: str, grace_s: float) -> None:
        """Give a worker this time to end by itself, then have its host kill it; returns when it is gone."""
        if not (found := self._workers.get(worker)):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.shield(found.ended)
        if not found.ended.done():
            await self._kill(found)
        # Another worker may have been ordered under this name meanwhile.
        if self._workers.get(worker) is found:
            del self._workers[worker]

    async def close(self) -> None:
        """End all workers; hosts stay, and dial in to the next pool."""
        await asyncio.gather(*(self.drain(worker, 0.0) for worker in list(self._workers)))

    def _checked(self, hello: pb.HostHello, send: Send) -> Host:
        before = self.connected.get(hello.host)
        if before and not hmac.compare_digest(before.ticket.encode(), hello.ticket.encode()):
            raise UnauthenticatedError(f"another host is connected under the name {shown(hello.host)}")
        if hello.version != (wanted := version("marless")):
            raise SpecError(
                f"host {hello.host} has marless {shown(hello.version)}, and its pool {wanted}: install {wanted} there"
            )
        return Host(hello, slots_of(hello, self._slots, self._program.settings), send)

    async def _send_token(self, host: Host) -> str:
        token = self._program.token()
        await host.order(pb.HostOrder(token=pb.RoleToken(token=token)))
        return token

    async def _keep_token(self, host: Host, sent: str) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            if self._program.token() != sent:
                sent = await self._send_token(host)

    async def _listen(self, host: Host, messages: Messages) -> None:
        while True:
            # In a task, so that the wait ends also when the host is given up.
            message = asyncio.ensure_future(anext(messages, None))
            try:
                await either(message, host.gone)
            finally:
                if not message.done():
                    message.cancel()
            if host.gone.done() or (received := message.result()) is None:
                return
            self._apply_message(host, received)

    def _apply_message(self, host: Host, message: pb.HostMessage) -> None:
        """Act on what a host says; raises SpecError for what no host says. Late reports of workers are ignored."""
        if message.HasField("started"):
            if launched := host.launches.get(message.started.launch):
                known = {outcome.value: outcome for outcome in LaunchOutcome}
                outcome = known.get(message.started.outcome, LaunchOutcome.UNKNOWN)
                launched.answer(Launch(outcome, message.started.reason))
        elif message.HasField("ended"):
            if launched := host.launches.get(message.ended.launch):
                self._end(host, launched, message.ended.how or "ended")
        elif message.HasField("notice"):
            check_number("the seconds of a notice", message.notice.seconds)
            self.announce_end(host.name, message.notice.why[:MAX_NAME], message.notice.seconds)
        else:
            raise SpecError("after its hello, a host reports starts and ends of workers, and notices")

    def announce_end(self, host: str, why: str, within_s: float = 0.0) -> None:
        """Give a host no more work: its machine ends within this time, or at one that is not known (0)."""
        found = self.connected.get(host)
        if found and not found.leaving.done():
            _log.warning("host.leaves", host=host, why=why, within_s=within_s, workers=len(found.launches))
        if found:
            found.announce_end(why, within_s)
            self._changed()

    async def _answer(self, launched: Launched) -> Launch:
        try:
            async with asyncio.timeout(START_S):
                launch = await asyncio.shield(launched.answered)
        except TimeoutError:
            # It may start it yet, and the pool will order this worker again elsewhere.
            await self._kill(launched)
            launch = Launch(
                LaunchOutcome.REFUSED,
                f"host {launched.host.name} did not start a worker within {START_S:g} s; see its log",
            )
        if launch.outcome in (LaunchOutcome.REFUSED, LaunchOutcome.FAILED):
            self._end(launched.host, launched, "not started")
        return launch

    async def _kill(self, launched: Launched) -> None:
        await launched.host.order(pb.HostOrder(end=pb.EndWorker(launch=launched.launch)))
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await asyncio.shield(launched.ended)
        if not launched.ended.done():
            _log.warning("host.hangs", host=launched.host.name, worker=launched.worker)
            launched.host.lose()
            self._end(launched.host, launched, "its host did not answer")

    def _end(self, host: Host, launched: Launched, how: str) -> None:
        host.release(launched.launch)
        launched.end(how)
        self._changed()

    def _lost(self, host: Host) -> None:
        host.lose()
        if self.connected.get(host.name) is host:
            del self.connected[host.name]
        _log.info("host.disconnected", host=host.name, workers=len(host.launches))
        for launched in list(host.launches.values()):
            how = f"its host {host.name} was lost"
            # Not unknown: a host without its pool ends all its workers.
            launched.answer(Launch(LaunchOutcome.REFUSED, f"{how} while it started"))
            self._end(host, launched, how)
        self._changed()


async def _hello_of(messages: Messages) -> pb.HostHello:
    hello = (await first_of(messages, "a host")).hello
    check_text("a host's name", hello.host)
    check_number("the vCPUs of a host", hello.vcpus)
    if not 0 <= hello.slots <= MAX_ACTORS or hello.vcpus > MAX_ACTORS or not hello.ticket:
        raise SpecError(f"a host has up to {MAX_ACTORS} slots and vCPUs, and a ticket")
    return hello


Send = Callable[[pb.HostOrder], Awaitable[None]]


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

    def __init__(self, hello: pb.HostHello, slots: int, send: Send) -> None:
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

    async def order(self, order: pb.HostOrder) -> None:
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


def slots_of(hello: pb.HostHello, given: int, settings: Mapping[str, str]) -> int:
    """How many workers a host takes: as it says itself, as given, or as many as its vCPUs have threads for."""
    threads = int(settings.get("OMP_NUM_THREADS", "1"))
    return hello.slots or given or max(1, int(hello.vcpus) // threads)
