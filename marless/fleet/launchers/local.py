"""The launcher of processes on this machine: it forks workers from a template process."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from marless.errors import UnavailableError
from marless.fleet import orphans
from marless.fleet.handover import Handover
from marless.fleet.launchers import template
from marless.fleet.launchers.base import ACCEPTED, Launch, Launcher, Options, Order, Outcome, Program
from marless.fleet.launchers.options import seconds_of
from marless.log import structlog

CONNECT_S = 60.0
CHECK_S = 1.0
"""Seconds between checks for zombies below running workers, and for a new token to send to a worker."""
FORK_S = 60.0
"""Seconds that a template may take to start and to fork a worker."""
EXIT_S = 5.0
"""Seconds that a template may take to exit after it has closed its sockets."""
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a machine that has no process, memory or descriptor left."""
_STARTS = 2
"""Templates that a launch tries: one may be killed at that moment."""
_log = structlog.get_logger("marless.workers")


class TemplateEndedError(Exception):
    """The template process ended before it had forked a worker."""


class Template:
    """A template process, which is started when a worker is first forked, and again if it has ended.

    It belongs to no event loop: launchers may share one, also one after another in loops of their own.
    """

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """`module` is imported by the template; `arguments` are as long as the longest that a worker gets."""
        self._command = template.command(module, arguments)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket

    @property
    def pid(self) -> int | None:
        """Process id of the running template; None if there is none."""
        return self._process.pid if self._process and self._process.poll() is None else None

    async def fork(self, arguments: Sequence[str], mark: str, standard_input: int) -> tuple[int, int, socket.socket]:
        """Fork a worker; returns its process id, its pidfd, and the socket on which the template reports its end.

        Raises TemplateEndedError, TimeoutError, and OSError if a template cannot be started.
        """
        if self.pid is None:
            self._start()
        reports, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        reports.setblocking(False)
        try:
            with theirs:
                order = template.order(arguments, mark)
                socket.send_fds(self._orders, [order], [standard_input, theirs.fileno()])
            async with asyncio.timeout(FORK_S):
                await _readable(reports.fileno())
            said, descriptors, _, _ = socket.recv_fds(reports, template.ORDER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if not said:
                raise TemplateEndedError
            if (pid := int(said)) < 0:
                raise OSError(-pid, os.strerror(-pid))
            return pid, descriptors[0], reports
        except BaseException as error:
            reports.close()
            if isinstance(error, TimeoutError):
                self.end()
                raise TimeoutError(f"its template did not fork it within {FORK_S:g} s") from None
            if isinstance(error, ConnectionError):
                raise TemplateEndedError from None
            raise

    def end(self, patience_s: float = 0.0) -> str:
        """End the template, whose workers go on: kill it unless it ends within this time. Returns how it ended."""
        if self._process is None:
            return "not started"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._process.kill()
        self._orders.close()
        return _how(self._process.wait())

    def _start(self) -> None:
        self.end()
        self._orders, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                env=self._environment | {orphans.MARK: orphans.new_mark()},
                start_new_session=True,
            )


class LocalLauncher:
    """Starts workers as processes of this machine, each in a session of its own.

    They end when the pool does, because their standard input closes. Processes that they started are ended too.
    """

    def __init__(self, program: Program, *, connect_s: float = CONNECT_S, shared: Template | None = None) -> None:
        """A changed token of the program is sent to running workers.

        `shared` is a template of the same module and environment that is not the launcher's own.
        """
        self.connect_s = connect_s
        self._token = program.token
        self._arguments = ("--launched", *program.arguments)
        self._template = shared or Template(program.module, self._arguments, program.environment)
        self._owns_template = shared is None
        self._processes: dict[str, _Process] = {}
        self._turn = asyncio.Lock()
        self._swept: asyncio.Task[None] | None = None

    def capacity(self) -> None:
        """The machine says so when it has no room."""
        return

    async def launch(self, orders: Sequence[Order]) -> Sequence[Launch]:
        """Fork the workers, which inherit the pool's standard error for their logs."""
        if self._swept is None:
            self._swept = asyncio.create_task(asyncio.to_thread(orphans.end_of_dead_pools))
        await asyncio.shield(self._swept)
        async with self._turn:
            return [await self._launch(order) for order in orders]

    async def observe(self, worker: str) -> str:
        """Wait for the end of its process."""
        process = self._processes.get(worker)
        return await process.ended() if process else "not started"

    async def drain(self, worker: str, grace_s: float) -> None:
        """End its process, and all that it has started."""
        if process := self._processes.get(worker):
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await process.ended()
            process.kill()
            await process.ended()
            self._processes.pop(worker, None)

    async def close(self) -> None:
        """Kill all workers, then the template."""
        await asyncio.gather(*(self.drain(worker, 0.0) for worker in self._processes))
        if self._owns_template:
            self._template.end()

    async def _launch(self, order: Order) -> Launch:
        try:
            self._processes[order.worker] = await self._fork(order)
        except OSError as error:
            outcome = Outcome.REFUSED if error.errno in _NO_ROOM else Outcome.FAILED
            return Launch(outcome, f"cannot start worker {order.worker}: {error.strerror or error}")
        except UnavailableError as error:
            return Launch(Outcome.FAILED, str(error))
        return ACCEPTED

    def _handover(self, ticket: str) -> Handover:
        return Handover(ticket, self._token())

    async def _fork(self, order: Order) -> _Process:
        arguments = (*self._arguments, *order.arguments, "--worker", order.worker)
        mark = orphans.new_mark()
        for _ in range(_STARTS):
            standard_input, lines = os.pipe()
            try:
                forked = await self._template.fork(arguments, mark, standard_input)
            except TemplateEndedError:
                os.close(lines)
                how = await asyncio.to_thread(self._template.end, EXIT_S)
                _log.warning("template.ended", how=how)
                continue
            except BaseException:
                os.close(lines)
                raise
            finally:
                os.close(standard_input)
            return await _Process.of(forked, lines, mark, partial(self._handover, order.ticket), self._reap)
        raise UnavailableError(f"worker {order.worker} could not start (its template: {how}); see the pool's log")

    def _reap(self) -> None:
        own = self._template.pid
        orphans.reap([own] if own else [])


def make(program: Program, options: Options) -> Launcher:
    """The launcher `local`, with the option `connect_s`."""
    return LocalLauncher(program, connect_s=seconds_of("local", options, CONNECT_S))


LAUNCHER = make


class _Process:
    """A running worker, observed by a task of its own until it has ended."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        reports: socket.socket,
        lines: asyncio.WriteTransport,
        handover: Callable[[], Handover],
    ) -> None:
        self._pid = pid
        self._pidfd = pidfd
        self._reports = reports
        self._lines = lines
        self._handover = handover
        self._handed: Handover | None = None
        self._end: asyncio.Task[str]

    @classmethod
    async def of(
        cls,
        forked: tuple[int, int, socket.socket],
        lines: int,
        mark: str,
        handover: Callable[[], Handover],
        reap: Callable[[], None],
    ) -> _Process:
        """Observe a forked worker, and send it its handover through the pipe `lines`."""
        pipe = os.fdopen(lines, "wb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.Protocol, pipe)
        process = cls(*forked, transport, handover)
        process._hand_over()
        process._end = asyncio.create_task(process._observe(mark, reap))
        return process

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    def kill(self) -> None:
        if not self._end.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def _observe(self, mark: str, reap: Callable[[], None]) -> str:
        try:
            how = await self._exit(reap)
            await asyncio.to_thread(orphans.end_below, self._pid, mark)
        finally:
            self._lines.close()
            self._reports.close()
            os.close(self._pidfd)
        reap()
        return how

    async def _exit(self, reap: Callable[[], None]) -> str:
        """Wait for its end, as the template reports it; if the template has ended, only the fact is known."""
        reported = asyncio.create_task(_readable(self._reports.fileno()))
        try:
            while not (await asyncio.wait([reported], timeout=CHECK_S))[0]:
                reap()
                self._hand_over()
        finally:
            reported.cancel()
        if code := self._reports.recv(template.ORDER_BYTES):
            return _how(int(code))
        await _readable(self._pidfd)
        return "ended after its template"

    def _hand_over(self) -> None:
        """Send the worker its ticket and token, unless it already has the current ones."""
        now = self._handover()
        if now != self._handed and not self._lines.is_closing():
            self._lines.write(now.to_line())
            self._handed = now


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor can be read."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
