"""The launcher of containers: each worker runs in one of its own, which a Docker-compatible engine starts.

A container is created under a name that its launcher and its worker determine, so that a creation whose answer was lost
is found again and never doubled. The worker's ticket and token go through its standard input, which the engine closes
when the pool's connection ends: then the worker exits. Containers carry labels by which those of dead pools are found.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from marless.core.errors import SpecError, UnavailableError
from marless.core.log import structlog
from marless.fleet.gpus import GpuShares
from marless.fleet.handover import Handover
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
from marless_docker import containers
from marless_docker.containers import ContainerSettings, Pool
from marless_docker.engine import ContainerState, Engine, EngineError

CALLS = 8
"""Calls to the engine at once."""
CHECK_S = 1.0
"""Seconds between checks for a new token to send to the workers."""
REMOVE_S = 30.0
"""Seconds for which the removal of a container is tried again."""
_RETRY_S = 0.5
_HEADER_BYTES = 8
"""Of each frame of a container's output: its stream, three zeros, the length of what follows."""
_CHUNK_BYTES = 2**16
_KILLED = 137
"""Exit code of a container whose process was ended by SIGKILL, as by the kernel for memory."""
_log = structlog.get_logger("marless.workers")
Result = TypeVar("Result")


class DockerLauncher:
    """Starts workers in containers, and removes these when the workers have ended."""

    def __init__(self, program: WorkerProgram, settings: ContainerSettings, engine: Engine) -> None:
        """A changed token of the program is sent to running workers."""
        self.connect_s = settings.connect_s
        self._program = program
        self._settings = settings
        self._engine = engine
        self._gpus = GpuShares.among(settings.gpus, program.settings, program.most)
        self._key = secrets.token_hex(4)
        self._pool = str(Pool.here())
        # Threads of its own, because calls to an engine that hangs occupy them for long.
        self._calls = ThreadPoolExecutor(CALLS, thread_name_prefix="engine")
        self._workers: dict[str, _Worker] = {}
        self._unknown: dict[str, str] = {}
        """Worker → why it is not known whether it runs."""
        self._prepared: asyncio.Task[None] | None = None
        self._closed = False

    def capacity(self) -> None:
        """The engine says so when it has no room."""
        return

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Create and start containers, some at once. What the engine refuses is ordered again by the pool."""
        # After a failure once more, because the engine or the image may be there by now.
        if self._prepared is None or (self._prepared.done() and self._prepared.exception()):
            self._prepared = asyncio.create_task(self._call(self._prepare))
        try:
            await asyncio.shield(self._prepared)
        except (UnavailableError, SpecError) as error:
            return [Launch(LaunchOutcome.REFUSED, str(error))] * len(orders)
        return await asyncio.gather(*map(self._launch, orders))

    async def observe(self, worker: str) -> str:
        """Wait for the end of its container; one that is not known to run is removed first."""
        if found := self._workers.get(worker):
            return await found.ended()
        if worker in self._unknown:
            await self._remove(worker)
        return self._unknown.pop(worker, "not started")

    async def drain(self, worker: str, grace_s: float) -> None:
        """Remove its container, with all processes in it."""
        found = self._workers.get(worker)
        if found and grace_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await found.ended()
        if found or worker in self._unknown:
            await self._remove(worker)
            self._unknown.pop(worker, None)
        if found:
            await found.close()
            self._workers.pop(worker, None)
        self._gpus.release(worker)

    async def close(self) -> None:
        """Remove all containers that this launcher has created, also those whose creation was never answered."""
        if self._closed:
            return
        self._closed = True
        if self._prepared:
            await asyncio.gather(self._prepared, return_exceptions=True)
            await asyncio.gather(*(self.drain(worker, 0.0) for worker in {*self._workers, *self._unknown}))
            with suppress(EngineError):
                for found in await self._call(partial(self._engine.labelled, f"{containers.KEY}={self._key}")):
                    await self._call(partial(self._engine.remove, found["Id"]))
        self._calls.shutdown(wait=False)

    async def check(self) -> Condition:
        """Ask the engine for its version, the image and the network."""
        try:
            version = await self._call(self._engine.version)
            await self._call(self._look)
        except (UnavailableError, SpecError) as error:
            found, _, advice = str(error).partition("; ")
            return Condition(found, advice)
        return Condition(f"{version} at {self._engine.url}, image {self._settings.image}")

    def _look(self) -> None:
        containers.check_image(self._settings.image, self._settings.user, self._engine.image(self._settings.image))
        self._engine.check_network(self._settings.network)

    def _prepare(self) -> None:
        """Check what all containers need, and remove those of dead pools."""
        self._look()
        for left in containers.of_dead_pools(self._engine):
            self._engine.remove(left.id)
            _log.warning("container.reaped", container=left.id, pool=left.pool, age_s=left.age_s)

    def _name(self, worker: str) -> str:
        return f"marless-{self._key}-{worker}"

    async def _call(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._calls, call)

    async def _launch(self, order: LaunchOrder) -> Launch:
        name = self._name(order.worker)
        try:
            streams = await self._call(partial(self._start, name, order))
        except EngineError as error:
            if error.lost:
                self._unknown[order.worker] = str(error)
                return Launch(LaunchOutcome.UNKNOWN, str(error))
            return Launch(LaunchOutcome.REFUSED, str(error))
        handover = partial(self._handover, order.ticket)
        how = partial(self._how, name)
        self._workers[order.worker] = await _Worker.of(streams, handover, how)
        return ACCEPTED

    def _start(self, name: str, order: LaunchOrder) -> socket.socket:
        """Create, attach to, and start a container; nothing of it is left if that fails with an answer."""
        arguments = (*order.arguments, "--launched", "--worker", order.worker)
        share = self._gpus.claim(order.worker)
        config, host_config = containers.configs(self._program, self._settings, arguments, share)
        labels = {containers.POOL: self._pool, containers.KEY: self._key, containers.WORKER: order.worker}
        self._engine.create(name, {**config, "labels": labels}, host_config)
        try:
            # Before its start, so that nothing that it says is missed: the engine keeps no log of it.
            streams = self._engine.attach(name)
            try:
                self._engine.start(name)
            except EngineError:
                streams.close()
                raise
        except EngineError as error:
            # Without an answer it may be running; its name is kept, by which `drain` finds it.
            if not error.lost:
                self._engine.remove(name)
            raise
        return streams

    def _handover(self, ticket: str) -> Handover:
        return Handover(ticket, self._program.token())

    async def _how(self, name: str) -> str:
        """How a container ended whose streams were closed."""
        try:
            state = await self._call(partial(self._engine.ended, name))
        except EngineError as error:
            return f"lost its connection to the engine ({error})"
        return _words(state, self._settings)

    async def _remove(self, worker: str) -> None:
        """Remove its container. If there is no engine, or it does not answer for long, it is left: the next container
        of this worker replaces it, and `close` or `marless fleet reap` removes it.
        """
        name, give_up_s = self._name(worker), time.monotonic() + REMOVE_S
        while True:
            try:
                return await self._call(partial(self._engine.remove, name))
            except EngineError as error:
                if error.absent or time.monotonic() > give_up_s:
                    _log.error("container.left", container=name, reason=str(error), advice="marless fleet reap")
                    return None
            await asyncio.sleep(_RETRY_S)


def make(program: WorkerProgram, options: Options) -> Launcher:
    """The launcher `docker`; its options are those of `marless_docker.containers.ContainerSettings`."""
    settings = containers.read(program, options)
    return DockerLauncher(program, settings, Engine(settings.engine, settings.engine_s))


class _Worker:
    """A running container, whose output is copied to the pool's standard error until it ends."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handover: Callable[[], Handover]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._handover = handover
        self._handed: Handover | None = None
        self._end: asyncio.Task[str]

    @classmethod
    async def of(
        cls, streams: socket.socket, handover: Callable[[], Handover], how: Callable[[], Awaitable[str]]
    ) -> _Worker:
        """Follow a container through the socket of its standard streams."""
        streams.setblocking(False)
        unix = streams.family == socket.AF_UNIX
        connect = asyncio.open_unix_connection if unix else asyncio.open_connection
        worker = cls(*await connect(sock=streams), handover)
        worker._end = asyncio.create_task(worker._follow(how))
        return worker

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    async def close(self) -> None:
        """Close its streams, of a container that has been removed."""
        self._writer.transport.abort()
        await self._end

    async def _follow(self, how: Callable[[], Awaitable[str]]) -> str:
        handing = asyncio.create_task(self._hand_over())
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._copy_output()
            return await how()
        finally:
            handing.cancel()
            self._writer.close()

    async def _hand_over(self) -> None:
        """Send the worker its ticket and token, and each new token."""
        while not self._writer.is_closing():
            now = self._handover()
            if now != self._handed:
                self._writer.write(now.to_line())
                self._handed = now
            await asyncio.sleep(CHECK_S)

    async def _copy_output(self) -> None:
        while True:
            header = await self._reader.readexactly(_HEADER_BYTES)
            left = int.from_bytes(header[4:], "big")
            while left:
                # In parts, because the header of a frame may announce up to 4 GiB.
                some = await self._reader.read(min(left, _CHUNK_BYTES))
                if not some:
                    return
                left -= len(some)
                sys.stderr.write(some.decode(errors="replace"))


def _words(state: ContainerState | None, settings: ContainerSettings) -> str:
    if state is None:
        return "its container is gone"
    limit = f"memory={settings.memory_bytes // 2**20}m"
    if state.is_out_of_memory:
        return f"out of memory: it needs more than {limit}"
    if state.exit_code == _KILLED:  # not every engine says why
        return f"killed, perhaps because it was out of memory: it may use {limit}"
    return f"exit code {state.exit_code}"
