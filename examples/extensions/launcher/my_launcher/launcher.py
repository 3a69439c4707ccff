"""A launcher that starts each worker as a plain process on this machine, with a new interpreter."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

from marless.core.errors import SpecError
from marless.fleet.handover import Handover
from marless.fleet.launchers.base import ACCEPTED, Launch, LaunchOrder, LaunchOutcome, Options, WorkerProgram


class MyLauncher:
    """Starts and ends the workers of one pool; they connect to it themselves."""

    connect_s = 120.0

    def __init__(self, program: WorkerProgram, options: Options) -> None:
        if options:
            raise SpecError(f"launcher my_launcher: it has no options, and {', '.join(options)} was given")
        self._program = program
        self._processes: dict[str, Process] = {}

    def capacity(self) -> int | None:
        """Room for workers besides those that run: not known."""
        return None

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Start workers; returns an answer to each order."""
        return [await self._launch(order) for order in orders]

    async def _launch(self, order: LaunchOrder) -> Launch:
        program = self._program
        command = [sys.executable, "-m", program.module, *program.arguments, *order.arguments]
        command += ["--launched", "--worker", order.worker]
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, env=dict(program.environment))
        except OSError as error:
            return Launch(LaunchOutcome.FAILED, f"cannot start worker {order.worker}: {error.strerror}")
        assert process.stdin
        # Ticket and token are secrets: on standard input nobody else sees them. The worker exits when it closes.
        process.stdin.write(Handover(order.ticket, program.token()).to_line())
        self._processes[order.worker] = process
        return ACCEPTED

    async def observe(self, worker: str) -> str:
        """Wait until a worker has ended; returns how."""
        if worker not in self._processes:
            return "not started"
        return f"exit code {await self._processes[worker].wait()}"

    async def drain(self, worker: str, grace_s: float) -> None:
        """Give a worker this time to end by itself, then kill it."""
        if process := self._processes.get(worker):
            try:
                await asyncio.wait_for(process.wait(), grace_s)
            except TimeoutError:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(self.drain(worker, 0.0) for worker in self._processes))
