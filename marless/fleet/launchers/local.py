"""The launcher of processes on this machine: it forks workers from a template process."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType

from marless.errors import UnavailableError
from marless.fleet import orphans
from marless.fleet.handover import Handover
from marless.fleet.launchers import template
from marless.fleet.launchers.base import WorkerHandle
from marless.log import structlog

CHECK_S = 1.0
"""Seconds between checks for zombies below running workers, and for a new token to send to a worker."""
FORK_S = 60.0
"""Seconds that a template may take to start and to fork a worker."""
EXIT_S = 5.0
"""Seconds that a template may take to exit after it has closed its sockets."""
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

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        token: Callable[[], str],
        shared: Template | None = None,
    ) -> None:
        """`token` returns the current token of the workers' role; a changed one is sent to running workers.

        `shared` is a template of the same module and environment that is not the launcher's own.
        """
        self._token = token
        self._arguments = ("--launched", *arguments)
        self._template = shared or Template(module, self._arguments, environment)
        self._owns_template = shared is None
        self._turn = asyncio.Lock()
        self._swept: asyncio.Task[None] | None = None

    def also(self, *arguments: str) -> LocalLauncher:
        """A launcher of workers with further arguments, from the same template."""
        other = copy.copy(self)
        other._arguments = (*self._arguments, *arguments)
        return other

    async def launch(self, worker: str, ticket: str) -> WorkerHandle:
        """Start one process, which inherits the pool's standard error for its logs."""
        if self._swept is None:
            self._swept = asyncio.create_task(asyncio.to_thread(orphans.end_of_dead_pools))
        await asyncio.shield(self._swept)
        try:
            async with self._turn:
                return await self._fork(worker, partial(self._handover, ticket))
        except OSError as error:
            raise UnavailableError(f"cannot start worker {worker}: {error.strerror or error}") from None

    async def __aenter__(self) -> LocalLauncher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the template, after the workers."""
        if self._owns_template:
            self._template.end()

    def _handover(self, ticket: str) -> Handover:
        return Handover(ticket, self._token())

    async def _fork(self, worker: str, handover: Callable[[], Handover]) -> WorkerHandle:
        arguments, mark = (*self._arguments, "--worker", worker), orphans.new_mark()
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
            return await _Process.of(forked, lines, mark, handover, self._reap)
        raise UnavailableError(f"worker {worker} could not start (its template: {how}); see the pool's log")

    def _reap(self) -> None:
        own = self._template.pid
        orphans.reap([own] if own else [])


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
