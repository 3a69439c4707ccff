"""Where workers come from. A launcher is a small protocol; `local` starts processes on this machine."""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from marless.errors import UnavailableError
from marless.rpc.workers import orphans
from marless.rpc.workers.handover import Handover

REAP_S = 1.0
"""How long what has ended below a living worker may stay as a zombie, and a new token may wait to be handed over."""


class WorkerHandle(Protocol):
    """A worker that was launched."""

    async def ended(self) -> str:
        """Wait until it is gone; returns how it went, for a log or a sentence."""
        ...

    def kill(self) -> None:
        """End it at once; twice is safe."""
        ...


class Launcher(Protocol):
    """Adds workers on some kind of machine; they dial out to their pool by themselves."""

    async def launch(self, worker: str, ticket: str) -> WorkerHandle:
        """Start a worker that will say hello under this name, with this ticket; raises UnavailableError if it cannot.

        The ticket is secret: never put it on a command line or into an environment.
        """
        ...


class LocalLauncher:
    """Workers as child processes of the pool, each in a session of its own.

    They end when the pool does: their standard input closes. Whatever they have started ends with them.
    """

    def __init__(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], token: Callable[[], str]
    ) -> None:
        """`token` is asked for what a worker is to show now; workers are told when it changes."""
        self._token = token
        self._command = (sys.executable, "-P", "-m", module, "--launched", *arguments)
        self._environment = dict(environment)
        self._living = _Living()
        self._swept: asyncio.Task[None] | None = None

    def also(self, *arguments: str) -> LocalLauncher:
        """A launcher of workers with further arguments. A process that adopts orphans waits for all of its workers in
        one place, so these two know of each other's.
        """
        other = copy.copy(self)
        other._command = (*self._command, *arguments)
        return other

    async def launch(self, worker: str, ticket: str) -> WorkerHandle:
        """Start one process; what it logs goes to the pool's own log."""
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
    """The workers of one launcher that have not ended: asyncio waits for them, and for nothing else."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._starting = 0

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While there may be a worker whose process id is not known yet."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    def reap(self) -> None:
        """Leave no zombie of what has ended below workers."""
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
        """Write what the worker was not handed yet: its ticket and its token, and a token that has taken its place."""
        now = self._handover()
        if now != self._handed and self._process.stdin:
            self._process.stdin.write(now.to_line())
            self._handed = now

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
