"""Forks processes from a template process (`marless.fleet.launchers.template`), and observes them."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from marless.core import orphans
from marless.core.log import structlog
from marless.fleet.launchers import template

FORK_S = 60.0
"""Seconds that a template may take to start and to fork a process."""
EXIT_S = 5.0
"""Seconds that a template may take to exit after it has closed its sockets."""
_STARTS = 2
"""Templates that are tried for a process: one may be killed at that moment."""
_log = structlog.get_logger("marless.workers")


class TemplateEndedError(Exception):
    """The template process ended before it had forked the process; the message is how it ended."""


@dataclass(frozen=True)
class Forked:
    """A forked process; `close` it when it has ended."""

    pid: int
    pidfd: int
    reports: socket.socket
    """On which the template reports its end."""

    async def ended(self) -> int | None:
        """Wait for its end; returns its exit code, negative if a signal killed it, or None if its template ended first
        and nobody knows.
        """
        await _readable(self.reports.fileno())
        if code := self.reports.recv(template.ORDER_BYTES):
            return int(code)
        await _readable(self.pidfd)
        return None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def close(self) -> None:
        """Close what is open for it here."""
        self.reports.close()
        os.close(self.pidfd)


class TemplateProcess:
    """A template process, which is started when a process is first forked, and again if it has ended.

    It belongs to no event loop: launchers may share one, also one after another in loops of their own.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        of_workers: bool = True,
        quiet: bool = False,
        ahead: Sequence[str] = (),
    ) -> None:
        """`module` is imported by the template; `arguments` are as long as the longest of a process.

        `ahead`: modules of processes that the template imports, one after another, while no process is asked for.
        `of_workers`: its processes carry marks, see `marless.core.orphans`. `quiet`: it writes no error messages.
        """
        self._command = template.command(module, arguments, ahead)
        self._environment = dict(environment)
        self._of_workers = of_workers
        self._errors = subprocess.DEVNULL if quiet else None
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket

    @property
    def pid(self) -> int | None:
        """Process id of the running template; None if there is none."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the template process, unless it runs, so that the first fork need not wait for it. Raises OSError."""
        if self.pid is None:
            self._start()

    async def fork(self, order: template.ForkOrder, *descriptors: int) -> Forked:
        """Fork a process; `descriptors` become its standard input, output and error, and what it keeps open.

        Raises TemplateEndedError, TimeoutError, and OSError if a process cannot be started.
        """
        how = ""
        for _ in range(_STARTS):
            try:
                return await self._fork(order, descriptors)
            except TemplateEndedError:
                how = await asyncio.to_thread(self.end, EXIT_S)
                _log.warning("template.ended", how=how)
        raise TemplateEndedError(how)

    async def _fork(self, order: template.ForkOrder, descriptors: Sequence[int]) -> Forked:
        self.start()
        # Sockets of this kind keep messages apart, as a stream does not, and show the end of the other side, as
        # datagrams do not.
        reports, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        reports.setblocking(False)
        try:
            # Closed here once it is sent: while this process held it, the end of the template would not show.
            with theirs:
                socket.send_fds(self._orders, [order.to_bytes()], [theirs.fileno(), *descriptors])
            async with asyncio.timeout(FORK_S):
                await _readable(reports.fileno())
            said, received, _, _ = socket.recv_fds(reports, template.ORDER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if not said:
                raise TemplateEndedError
            if (pid := int(said)) < 0:
                raise OSError(-pid, os.strerror(-pid))
            if not received:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # nobody could observe it, but its template waits for its end
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return Forked(pid, received[0], reports)
        except BaseException as error:
            reports.close()
            if isinstance(error, TimeoutError):
                # A template that hangs would make each further order wait as long; the next one starts a fresh
                # template.
                self.end()
                raise TimeoutError(f"its template did not fork it within {FORK_S:g} s") from None
            if isinstance(error, ConnectionError):
                raise TemplateEndedError from None
            raise

    def end(self, patience_s: float = 0.0) -> str:
        """End the template, whose processes go on: kill it unless it ends within this time. Returns how it ended."""
        if self._process is None:
            return "not started"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._process.kill()
        self._orders.close()
        return how(self._process.wait())

    def _start(self) -> None:
        self.end()
        self._orders, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        marks = {orphans.MARK: orphans.new_mark()} if self._of_workers else {}
        with theirs:
            # In a session of its own, so that Ctrl-C in a terminal reaches only the command, which then ends everything
            # in order.
            self._process = subprocess.Popen(
                self._command,
                stdin=theirs.fileno(),
                stderr=self._errors,
                env=self._environment | marks,
                start_new_session=True,
            )


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor can be read."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def how(code: int) -> str:
    """How a process ended, by its exit code."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
