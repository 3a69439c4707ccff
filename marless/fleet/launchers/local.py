"""The launcher of processes on this machine: it forks workers from a template process."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress

from marless.core import orphans
from marless.fleet.gpus import GpuShares, visible_gpus
from marless.fleet.handover import Handover
from marless.fleet.launchers import forking, template
from marless.fleet.launchers.base import (
    ACCEPTED,
    Condition,
    Launch,
    Launcher,
    LaunchOrder,
    LaunchOutcome,
    Options,
    WorkerProgram,
)
from marless.fleet.launchers.forking import Forked, TemplateEndedError, TemplateProcess
from marless.fleet.launchers.registry import seconds_of

CONNECT_S = 60.0
CHECK_S = 1.0
"""Seconds between checks for zombies below running workers, and for a new token to send to a worker."""
_NO_ROOM = {
    errno.EAGAIN: "no process or thread (`ulimit -u`, the limit of tasks of a container)",
    errno.ENOMEM: "no memory",
    errno.EMFILE: "no descriptor in its pool (`ulimit -n`)",
    errno.ENFILE: "no descriptor",
}
"""Errors of a machine that has nothing left of something, and what that is. They pass, as does what follows here."""
_KILLED = "killed by signal"


class LocalLauncher:
    """Starts workers as processes of this machine, each in a session of its own.

    They end when the pool does, because their standard input closes. Processes that they started are ended too.
    """

    def __init__(
        self, program: WorkerProgram, *, connect_s: float = CONNECT_S, shared: TemplateProcess | None = None
    ) -> None:
        """A changed token of the program is sent to running workers.

        `shared` is a template of the same module and environment that is not the launcher's own.
        """
        self.connect_s = connect_s
        self._token = program.token
        self._module = program.module
        self._arguments = ("--launched", *program.arguments)
        self._environment = program.environment
        self._template = shared or TemplateProcess(
            program.module, self._arguments, program.environment, ahead=program.ahead
        )
        self._owns_template = shared is None
        self._gpus = GpuShares.among(visible_gpus(program.environment), program.settings, program.most)
        self._processes: dict[str, _Process] = {}
        self._turn = asyncio.Lock()
        self._swept: asyncio.Task[None] | None = None

    def capacity(self) -> None:
        """The machine says so when it has no room."""
        return

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Fork the workers, which inherit the pool's standard error for their logs."""
        # Once for all callers, and shielded: one that is cancelled must not stop it for the others.
        if self._swept is None:
            self._swept = asyncio.create_task(asyncio.to_thread(orphans.end_of_dead_pools))
        await asyncio.shield(self._swept)
        async with self._turn:
            return [await self._launch(order) for order in orders]

    async def observe(self, worker: str) -> str:
        process = self._processes.get(worker)
        return await process.ended() if process else "not started"

    async def drain(self, worker: str, grace_s: float) -> None:
        if process := self._processes.get(worker):
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await process.ended()
            process.kill()
            await process.ended()
            self._processes.pop(worker, None)
            self._gpus.release(worker)

    async def close(self) -> None:
        await asyncio.gather(*(self.drain(worker, 0.0) for worker in self._processes))
        if self._owns_template:
            self._template.end()

    async def check(self) -> Condition:
        """Fork a worker that does nothing, from a template of its own."""
        module = "marless.fleet.launchers.idle"
        idle = TemplateProcess(module, (), self._environment, quiet=True)
        try:
            with open(os.devnull, "rb") as nothing:  # noqa: ASYNC230, PTH123  # it does not block
                forked = await idle.fork(
                    template.ForkOrder(module=module, arguments=(), mark=orphans.new_mark()), nothing.fileno()
                )
            code = await forked.ended()
            forked.close()
        except (OSError, TemplateEndedError) as error:
            return Condition(
                f"a worker cannot be forked: {error}", "see which limits of processes and memory hold here"
            )
        finally:
            idle.end()
        if code:
            return Condition(f"a worker that does nothing ended with {forking.how(code)}", "install marless anew")
        return Condition("workers can be forked from a template")

    async def _launch(self, order: LaunchOrder) -> Launch:
        begin = f"cannot start worker {order.worker}"
        try:
            self._processes[order.worker] = await self._fork(order)
        except TimeoutError as error:
            return Launch(LaunchOutcome.REFUSED, f"{begin}: {error}; the machine is too busy, it is tried again")
        except OSError as error:
            if lacking := _NO_ROOM.get(error.errno or 0):
                return Launch(LaunchOutcome.REFUSED, f"{begin}: there is {lacking} left; it is tried again")
            return Launch(LaunchOutcome.FAILED, f"{begin}: {error.strerror or error}")
        except TemplateEndedError as error:
            if str(error).startswith(_KILLED):  # as by the kernel, for memory
                return Launch(LaunchOutcome.REFUSED, f"{begin}: its template was {error}; it is tried again")
            return Launch(
                LaunchOutcome.FAILED,
                f"worker {order.worker} could not start (its template: {error}); see the pool's log",
            )
        return ACCEPTED

    async def _fork(self, order: LaunchOrder) -> _Process:
        arguments = (*self._arguments, *order.arguments, "--worker", order.worker)
        share = self._gpus.claim(order.worker)
        forking_order = template.ForkOrder(
            module=self._module,
            arguments=arguments,
            settings=share.settings if share else {},
            mark=orphans.new_mark(),
        )
        standard_input, lines = os.pipe()
        try:
            forked = await self._template.fork(forking_order, standard_input)
        except BaseException:
            os.close(lines)
            raise
        finally:
            # In any case: while this copy is open, writing to a worker that has ended raises no error.
            os.close(standard_input)
        return await _Process.of(
            forked, lines, forking_order.mark, lambda: Handover(order.ticket, self._token()), self._reap
        )

    def _reap(self) -> None:
        own = self._template.pid
        # `subprocess` itself waits for the template, and would not learn how it ended if somebody else did so before.
        orphans.reap([own] if own else [])


def make(program: WorkerProgram, options: Options) -> Launcher:
    """The launcher `local`, with the option `connect_s`."""
    return LocalLauncher(program, connect_s=seconds_of("local", options, CONNECT_S))


LAUNCHER = make


class _Process:
    """A running worker, observed by a task of its own until it has ended."""

    def __init__(self, forked: Forked, lines: asyncio.WriteTransport, handover: Callable[[], Handover]) -> None:
        self._forked = forked
        self._lines = lines
        self._handover = handover
        self._handed: Handover | None = None
        self._end: asyncio.Task[str]

    @classmethod
    async def of(
        cls, forked: Forked, lines: int, mark: str, handover: Callable[[], Handover], reap: Callable[[], None]
    ) -> _Process:
        """Observe a forked worker, and send it its handover through the pipe `lines`."""
        pipe = os.fdopen(lines, "wb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.Protocol, pipe)
        process = cls(forked, transport, handover)
        process._hand_over()
        process._end = asyncio.create_task(process._observe(mark, reap))
        return process

    async def ended(self) -> str:
        # Several wait for this, and one that is cancelled must not end it for the others.
        return await asyncio.shield(self._end)

    def kill(self) -> None:
        if not self._end.done():
            self._forked.send_signal(signal.SIGKILL)

    async def _observe(self, mark: str, reap: Callable[[], None]) -> str:
        try:
            how = await self._exit(reap)
            await asyncio.to_thread(orphans.end_below, self._forked.pid, mark)
        finally:
            self._lines.close()
            self._forked.close()
        reap()
        return how

    async def _exit(self, reap: Callable[[], None]) -> str:
        """Wait for its end, as the template reports it; if the template has ended, only the fact is known."""
        ended = asyncio.create_task(self._forked.ended())
        try:
            while not (await asyncio.wait([ended], timeout=CHECK_S))[0]:
                reap()
                self._hand_over()
        finally:
            ended.cancel()
        return "ended after its template" if (code := ended.result()) is None else forking.how(code)

    def _hand_over(self) -> None:
        """Send the worker its ticket and token, unless it already has the current ones."""
        now = self._handover()
        if now != self._handed and not self._lines.is_closing():
            self._lines.write(now.to_line())
            self._handed = now
