"""The program of a machine that dials in to a pool, and starts and ends workers there as the pool orders.

It starts them as the launcher `local` does.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from importlib.metadata import version

import grpc

from marless.core import orphans, process_environment
from marless.core.errors import MarlessError, UnavailableError
from marless.core.log import structlog
from marless.core.machine import usable_cores
from marless.fleet.handover import new_ticket
from marless.fleet.launchers.base import Launch, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.launchers.hosts.options import HostOptions, Identity, Notice, Surroundings
from marless.fleet.launchers.local import LocalLauncher
from marless.rpc.client import Peer
from marless.rpc.errors import from_rpc
from marless.rpc.roles import Role
from marless.rpc.v1 import hosts_pb2 as pb
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub

RETRY_S = 2.0
"""Seconds between two attempts to reach the pool, on average: hosts that lost it together come back one by one."""
STOP_S = 20.0
"""Seconds that workers may take to end their tasks when the program is told to stop."""
Stream = grpc.aio.StreamStreamCall[pb.HostMessage, pb.HostOrder]
_log = structlog.get_logger("marless.host")


def run(options: HostOptions, surroundings: Surroundings) -> int:
    """Run a host program to its end; returns its exit code."""
    orphans.adopt()
    orphans.end_of_dead_pools()
    return asyncio.run(HostProgram(options, surroundings).run())


class HostProgram:
    """Serves a pool, and reconnects, until it is stopped or has been alone for too long."""

    def __init__(self, options: HostOptions, surroundings: Surroundings) -> None:
        self._options = options
        self._surroundings = surroundings
        self._ticket = new_ticket()
        self._stream: Stream | None = None
        """The stream of a pool that has admitted this host."""
        self._writing = asyncio.Lock()
        self._notice: Notice | None = None
        self._alone = asyncio.Event()
        """Set after too long a time without a pool."""
        self._alone_later: asyncio.TimerHandle | None = None
        self._reports: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Returns 0 if it was stopped, or has had the machine ended; 1 if that failed."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        # The time without a pool counts from the start: a machine that never reaches one must not run for ever.
        self._lost_pool()
        deciding = [asyncio.create_task(each.wait()) for each in (stopped, self._alone)]
        serving = asyncio.create_task(self._serve())
        try:
            await asyncio.wait([*deciding, serving], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()  # it never returns: an error of ours
            if stopped.is_set():
                # The pool is told, and its workers get time to end their tasks.
                self._notice = Notice("its host program was stopped", STOP_S)
                await self._tell_notice()
                if self._stream and self._reports:
                    await asyncio.wait(list(self._reports), timeout=STOP_S)
        finally:
            for task in (*deciding, serving):
                task.cancel()
            await asyncio.gather(*deciding, serving, return_exceptions=True)
        return 0 if stopped.is_set() else await self._end_machine()

    async def _serve(self) -> None:
        identity = await self._surroundings.identify()
        workers = HostWorkers(identity.machine, self._options.security.arguments(), self._options.slots)
        watching = asyncio.create_task(self._watch())
        try:
            await self._keep_serving(identity, workers)
        finally:
            watching.cancel()
            await workers.close()

    async def _keep_serving(self, identity: Identity, workers: HostWorkers) -> None:
        said = ""
        while True:
            try:
                await self._session(identity, workers)
            except MarlessError as error:
                # An attempt every two seconds: what fails in the same way again and again is logged once.
                if self._stream or str(error) != said:
                    _log.warning("pool.not_reached", pool=self._options.pool, reason=(said := str(error)))
            finally:
                if self._stream:
                    self._lost_pool()
                # With the stream, the pool has given them up, and orders them elsewhere.
                await workers.clear()
            await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.5))

    async def _session(self, identity: Identity, workers: HostWorkers) -> None:
        """Serve a pool until the stream ends; raises the domain error that it ended with."""
        peer = Peer(self._options.pool, self._options.security, "its pool")
        stub = {Role.ACTOR: ActorPoolServiceStub, Role.LEARNER: LearnerPoolServiceStub}[self._options.role](
            peer.channel
        )
        stream: Stream = stub.Host(metadata=peer.metadata)
        hello = pb.HostHello(
            host=identity.name,
            ticket=self._ticket,
            slots=self._options.slots,
            vcpus=usable_cores(),
            machine=identity.machine,
            version=version("marless"),
        )
        try:
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the stream's end says why
                await self._write(stream, pb.HostMessage(hello=hello))
                while (order := await stream.read()) is not grpc.aio.EOF:
                    assert isinstance(order, pb.HostOrder)  # EOF is one object, and a type to the checker
                    await self._obey(order, stream, workers)
            code, details, trailer = await stream.code(), await stream.details(), await stream.trailing_metadata()
            if code == grpc.StatusCode.OK:
                raise UnavailableError("its pool has ended the connection")
            raise from_rpc(grpc.aio.AioRpcError(code, None, trailer, details), "its pool")
        finally:
            for report in self._reports:
                report.cancel()
            stream.cancel()
            await peer.close()

    async def _obey(self, order: pb.HostOrder, stream: Stream, workers: HostWorkers) -> None:
        if order.HasField("program"):
            await workers.use(order.program)
            self._stream = stream
            if self._alone_later:
                self._alone_later.cancel()
            _log.info("pool.reached", pool=self._options.pool)
            # The notice may have come while there was no pool, or an earlier one.
            await self._tell_notice()
        elif order.HasField("token"):
            workers.token = order.token.token
        elif order.HasField("start"):
            # In a task of its own, because a start takes long, and an order that follows may be to end it.
            self._report(self._start(order.start, stream, workers))
        elif order.HasField("end"):
            self._report(self._end(order.end, stream, workers))

    def _report(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    async def _start(self, order: pb.StartWorker, stream: Stream, workers: HostWorkers) -> None:
        launch = await workers.start(order)
        started = pb.WorkerStarted(launch=order.launch, outcome=launch.outcome.value, reason=launch.reason)
        await self._write(stream, pb.HostMessage(started=started))
        if launch.outcome is LaunchOutcome.ACCEPTED:
            how = await workers.ended(order.launch)
            await self._write(stream, pb.HostMessage(ended=pb.WorkerEnded(launch=order.launch, how=how)))

    async def _end(self, order: pb.EndWorker, stream: Stream, workers: HostWorkers) -> None:
        if order.launch in workers:
            await workers.end(order.launch, order.grace_s)
        else:
            # Answered all the same, because the pool waits for its end.
            ended = pb.WorkerEnded(launch=order.launch, how="not started")
            await self._write(stream, pb.HostMessage(ended=ended))

    async def _write(self, stream: Stream, message: pb.HostMessage) -> None:
        async with self._writing:  # two concurrent writes break a stream
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader notices the broken stream
                await stream.write(message)

    async def _watch(self) -> None:
        async for notice in self._surroundings.notices():
            _log.warning("machine.ends", why=notice.why, within_s=notice.seconds)
            self._notice = notice
            await self._tell_notice()

    async def _tell_notice(self) -> None:
        if self._stream and self._notice:
            notice = pb.HostNotice(why=self._notice.why, seconds=self._notice.seconds)
            await self._write(self._stream, pb.HostMessage(notice=notice))

    def _lost_pool(self) -> None:
        self._stream = None
        self._alone_later = asyncio.get_running_loop().call_later(self._options.alone_s, self._alone.set)

    async def _end_machine(self) -> int:
        _log.warning("machine.ended", reason=f"no pool was reached for {self._options.alone_s:g} s")
        command = self._options.end_command
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
            code = await process.wait()
        except OSError as error:
            _log.error("machine.not_ended", command=command, reason=error.strerror)
            return 1
        if code:
            _log.error("machine.not_ended", command=command, reason=f"exit code {code}")
        return 1 if code else 0


MACHINE = "MARLESS_MACHINE"
"""Environment variable by which workers know on which machine they run."""


class HostWorkers:
    """Starts and ends workers. The template from which they are forked outlives the connection to their pool."""

    def __init__(self, machine: str, arguments: Sequence[str], slots: int = 0) -> None:
        """`arguments` are those of each worker in addition to its pool's, such as this machine's TLS files; `slots` as
        in `HostOptions`.
        """
        self._machine = machine
        self._slots = slots
        self._arguments = tuple(arguments)
        self.token = ""
        """The token of the workers' role, which those that run are sent when it changes."""
        self._program = pb.HostProgram()
        self._launcher: LocalLauncher | None = None
        self._workers: dict[int, str] = {}

    def __contains__(self, launch: int) -> bool:
        return launch in self._workers

    async def use(self, program: pb.HostProgram) -> None:
        """Run workers of this program from now on; there must be none of another one."""
        if self._launcher and program != self._program:
            await self.close()
        if self._launcher is None:
            self._program = program
            settings = dict(program.settings)
            variables = process_environment.inherited(os.environ) | settings
            if self._machine:
                variables[MACHINE] = self._machine
            arguments = (*program.arguments, *self._arguments)  # of two equal options, a worker takes the latter
            self._launcher = LocalLauncher(
                WorkerProgram(program.module, arguments, variables, lambda: self.token, settings, most=self._slots)
            )

    async def start(self, order: pb.StartWorker) -> Launch:
        """Start a worker."""
        assert self._launcher is not None  # `use` comes first
        self._workers[order.launch] = order.worker
        [launch] = await self._launcher.launch([LaunchOrder(order.worker, order.ticket, tuple(order.arguments))])
        return launch

    async def ended(self, launch: int) -> str:
        """Wait until a worker has ended, and forget it; returns how it ended."""
        worker = self._workers.get(launch)
        if self._launcher is None or worker is None:
            return "not started"
        how = await self._launcher.observe(worker)
        await self._launcher.drain(worker, 0.0)
        self._workers.pop(launch, None)
        return how

    async def end(self, launch: int, grace_s: float) -> None:
        """Give a worker this time to end by itself, then kill it."""
        worker = self._workers.get(launch)
        if self._launcher and worker:
            await self._launcher.drain(worker, grace_s)

    async def clear(self) -> None:
        """Kill all workers."""
        await asyncio.gather(*(self.end(launch, 0.0) for launch in list(self._workers)))
        self._workers.clear()

    async def close(self) -> None:
        """Kill all workers, and the template."""
        if self._launcher:
            await self._launcher.close()
            self._launcher = None
        self._workers.clear()
