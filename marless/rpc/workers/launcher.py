"""Where workers come from. A launcher is a small protocol; `local` starts processes on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from marless.errors import UnavailableError
from marless.rpc.workers.handover import Handover


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
    """Workers as child processes of the pool. They end when the pool does: their standard input closes."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], token: str = "") -> None:
        self._token = token
        self._command = (sys.executable, "-m", module, "--launched", *arguments)
        self._environment = dict(environment)

    async def launch(self, worker: str, ticket: str) -> WorkerHandle:
        """Start one process; what it logs goes to the pool's own log."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, "--worker", worker, stdin=asyncio.subprocess.PIPE, env=self._environment
            )
        except OSError as error:
            raise UnavailableError(f"cannot start worker {worker}: {error.strerror}") from None
        assert process.stdin
        process.stdin.write(Handover(ticket, self._token).to_line())
        return _Process(process)


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ended(self) -> str:
        code = await self._process.wait()
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
