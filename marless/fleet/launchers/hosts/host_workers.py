"""The workers of one host, started as the launcher `local` starts them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from marless.core import process_environment
from marless.fleet.launchers.base import Launch, LaunchOrder, WorkerProgram
from marless.fleet.launchers.local import LocalLauncher
from marless.rpc.v1 import hosts_pb2

MACHINE = "MARLESS_MACHINE"
"""Environment variable by which workers know on which machine they run."""


class HostWorkers:
    """Starts and ends workers. The template from which they are forked outlives the connection to their pool."""

    def __init__(self, machine: str, arguments: Sequence[str]) -> None:
        """`arguments` are those of each worker in addition to its pool's, such as this machine's TLS files."""
        self._machine = machine
        self._arguments = tuple(arguments)
        self._token = ""
        self._program = hosts_pb2.HostProgram()
        self._launcher: LocalLauncher | None = None
        self._workers: dict[int, str] = {}

    def __contains__(self, launch: int) -> bool:
        return launch in self._workers

    async def use(self, program: hosts_pb2.HostProgram) -> None:
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
                WorkerProgram(program.module, arguments, variables, lambda: self._token, settings)
            )

    def hand(self, token: str) -> None:
        """Hand the token of the workers' role to all that run, and to those that are started later."""
        self._token = token

    async def start(self, order: hosts_pb2.StartWorker) -> Launch:
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
