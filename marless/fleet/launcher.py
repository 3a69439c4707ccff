"""Launchers start workers. `Launcher` is the protocol; `LocalLauncher` starts processes on this machine."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from marless.errors import UnavailableError
from marless.fleet import orphans
from marless.fleet.handover import Handover

REAP_S = 1.0
"""Seconds between checks for zombies below running workers, and for a new token to send to a worker."""


class WorkerHandle(Protocol):
    """A launched worker."""

    async def ended(self) -> str:
        """Wait until it has ended; returns how, for logs and error messages."""
        ...

    def kill(self) -> None:
        """Kill it at once; idempotent."""
        ...


class Launcher(Protocol):
    """Starts workers on some kind of machine; they connect to their pool themselves."""

    async def launch(self, worker: str, ticket: str) -> WorkerHandle:
        """Start a worker that connects under this name with this ticket; raises UnavailableError if it cannot start.

        The ticket is secret: never put it on a command line or into an environment.
        """
        ...


class LocalLauncher:
    """Starts workers as child processes of the pool, each in a session of its own.

    They end when the pool does, because their standard input closes. Processes that they started are ended too.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], token: Callable[[], str]
    ) -> None:
        """`token` returns the current token of the workers' role; a changed one is sent to running workers."""
        self._token = token
        self._command = (sys.executable, "-P", "-m", module, "--launched", *arguments)
        self._environment = dict(environment)
        self._living = _Living()
        self._swept: asyncio.Task[None] | None = None

    def also(self, *arguments: str) -> LocalLauncher:
        """A launcher with further arguments. It shares the set of running workers with this one, because orphans are
        reaped in one place for the whole process.
        """
        other = copy.copy(self)
        other._command = (*self._command, *arguments)
        return other

    async def launch(self, worker: str, ticket: str) -> WorkerHandle:
        """Start one process, which inherits the pool's standard error for its logs."""
        mark = orphans.new_mark()
        try:
            process = await self._start(worker, mark)
        except OSError as error:
            raise UnavailableError(f"cannot start worker {worker}: {error.strerror}") from None
        return _Process(process, mark, self._living, partial(self._handover, ticket))

    def _handover(self, ticket: str) -> Handover:
        return Handover(ticket, self._token())

    async def _start(self, worker: str, mark: str) -> asyncio.subprocess.Process:
        if self._swept is None:
            self._swept = asyncio.create_task(asyncio.to_thread(orphans.end_of_dead_pools))
        await asyncio.shield(self._swept)
        with self._living.starting():
            return await asyncio.create_subprocess_exec(
                *(*self._command, "--worker", worker),
                stdin=asyncio.subprocess.PIPE,
                env=self._environment | {orphans.MARK: mark},
                start_new_session=True,
            )


class _Living:
    """Process ids of a launcher's running workers. asyncio waits for them; all other children are reaped here."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._starting = 0

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Suspend reaping while a worker is being started, whose process id is not known yet."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    def reap(self) -> None:
        """Reap zombies of ended processes below workers."""
        if not self._starting:
            orphans.reap(self.pids)


class _Process:
    def __init__(
        self, process: asyncio.subprocess.Process, mark: str, living: _Living, handover: Callable[[], Handover]
    ) -> None:
        self._process = process
        self._mark = mark
        self._living = living
        self._handover = handover
        self._handed: Handover | None = None
        living.pids.add(process.pid)
        self._hand_over()

    async def ended(self) -> str:
        code = await self._code()
        await asyncio.to_thread(orphans.end_below, self._process.pid, self._mark)
        self._living.pids.discard(self._process.pid)
        self._living.reap()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    async def _code(self) -> int:
        waiting = asyncio.create_task(self._process.wait())
        try:
            while not (await asyncio.wait([waiting], timeout=REAP_S))[0]:
                self._living.reap()
                self._hand_over()
            return waiting.result()
        finally:
            waiting.cancel()

    def _hand_over(self) -> None:
        """Send the worker its ticket and token, unless it already has the current ones."""
        now = self._handover()
        if now != self._handed and self._process.stdin:
            self._process.stdin.write(now.to_line())
            self._handed = now

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
