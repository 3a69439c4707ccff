"""Actor workers for `bench.scale`: real in protocol, small in process, because many share one process.

`python -m bench.crowd …` serves an actor pool whose fleet launches its workers by `Crowd`. Each worker has connections,
a stream, pulls and uploads of its own, by the code of a worker process; only the rollout itself is played once in each
process, and its trajectory uploaded by all workers of the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from bench.light import Host
from bench.stack import LIGHT, PLACES
from marless.core.errors import MarlessError
from marless.fleet.handover import Handover
from marless.fleet.launchers.base import ACCEPTED, Launch, LaunchOrder, Options, WorkerProgram
from marless.fleet.session import work
from marless.fleet.worker_process import Watchdog, WorkerOptions, worker_options
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.trajectory import Trajectory
from marless.learning.nets.acting import ActingState
from marless.rpc.process import configure_logging
from marless.rpc.roles import Role
from marless.rpc.server import run
from marless.rpc.v1 import actor_pool_pb2
from marless.services.actor_pool.__main__ import build, parse
from marless.services.actor_pool.worker import Actor
from marless.services.actor_pool.worker import run as run_worker

WORKERS_A_PROCESS = 500
CONNECT_S = 300.0
Rollouts = dict[tuple[str, int, int], tuple[Trajectory, EpisodeStats]]


class Crowd:
    """A launcher whose workers live in a few processes, `WORKERS_A_PROCESS` in each."""

    connect_s = CONNECT_S

    def __init__(self, program: WorkerProgram, options: Options) -> None:
        self._program = program
        self._hosts: list[Process] = []
        self._homes: dict[str, Process] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._ended: dict[str, asyncio.Event] = {}

    def capacity(self) -> None:
        """Not known."""
        return

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Start workers in the processes that have room, and more processes for the rest."""
        for order in orders:
            if len(self._homes) >= WORKERS_A_PROCESS * len(self._hosts):
                await self._start_host()
            home = min(self._hosts, key=lambda host: sum(each is host for each in self._homes.values()))
            self._homes[order.worker], self._ended[order.worker] = home, asyncio.Event()
            self._tell(home, start=order.worker, ticket=order.ticket, token=self._program.token())
        return [ACCEPTED] * len(orders)

    async def observe(self, worker: str) -> str:
        """Wait until its process says that it has ended."""
        if ended := self._ended.get(worker):
            await ended.wait()
        return "ended"

    async def drain(self, worker: str, grace_s: float) -> None:
        """Have its process cancel it, after this time at the latest."""
        if home := self._homes.get(worker):
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._ended[worker].wait()
            self._tell(home, stop=worker)
            await self._ended[worker].wait()  # also set if the process has ended, so its home is kept until then
            del self._homes[worker], self._ended[worker]

    async def close(self) -> None:
        """Kill all processes."""
        for host in self._hosts:
            with suppress(ProcessLookupError):
                host.kill()
            await host.wait()
        await asyncio.gather(*self._readers)

    async def _start_host(self) -> None:
        command = (sys.executable, "-m", "bench.crowd", "--hosting", *self._program.arguments)
        environment = {**self._program.environment, LIGHT: os.environ.get(LIGHT, "")}
        if places := list(filter(None, os.environ.get(PLACES, "").split(","))):
            namespace, _, near = places[len(self._hosts) % len(places)].partition("=")
            command = ("ip", "netns", "exec", namespace, *command)
            if not environment[LIGHT]:
                command = (*command, "--param-store-caches", f"{near}.cache", "--relay", f"{near}.relay")
        host = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment)
        self._hosts.append(host)
        self._readers.append(asyncio.create_task(self._listen(host)))

    async def _listen(self, host: Process) -> None:
        assert host.stdout is not None
        async for line in host.stdout:
            if ended := self._ended.get(line.decode().strip()):
                ended.set()
        for worker, home in self._homes.items():
            if home is host:
                self._ended[worker].set()

    def _tell(self, host: Process, **told: str) -> None:
        assert host.stdin is not None
        host.stdin.write(json.dumps(told).encode() + b"\n")


class _SameRollout(Actor):
    """An actor that plays a rollout once in its process."""

    def __init__(self, played: Rollouts, *parts: Any) -> None:  # Any: as of an actor
        super().__init__(*parts)
        self.played = played

    def _act(
        self, task: actor_pool_pb2.RolloutTask, acting: Mapping[str, ActingState], stop: threading.Event
    ) -> tuple[Trajectory, EpisodeStats]:
        key = (task.settings.env, task.settings.envs, task.settings.steps)
        if key not in self.played:
            self.played[key] = super()._act(task, acting, stop)
        return self.played[key]


class _LightActor(_SameRollout):
    """An actor that leaves it to its host to read weights."""

    def __init__(self, played: Rollouts, options: WorkerOptions, host: Host) -> None:
        as_relay: Any = host  # Any: it has the methods of a relay that an actor calls
        super().__init__(played, host.store, options.security, None, as_relay)
        self.host = host

    async def _pull(self, task: actor_pool_pb2.RolloutTask) -> dict[str, ActingState]:
        return await self.host.acting(task)


async def _light_worker(options: WorkerOptions, played: Rollouts, host: Host) -> None:
    work_of_it: Any = host.work  # Any: as a stub's
    actor = _LightActor(played, options, host)
    try:
        await work(options, host.pool, work_of_it, actor.run)
    finally:
        await actor.close()


async def host(make: Callable[[str, Handover], WorkerOptions]) -> None:
    """Run the workers that standard input names, until it closes; prints the name of each that has ended."""
    lines, played, running = asyncio.StreamReader(), Rollouts(), dict[str, asyncio.Task[None]]()
    shared: Host | None = None
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async for line in lines:
        told = json.loads(line)
        if "start" in told:
            name = told["start"]
            options = make(name, Handover(told["ticket"], told["token"]))
            shared = shared or _shared(options)
            worker = (
                _light_worker(options, played, shared) if shared else run_worker(options, partial(_SameRollout, played))
            )
            running[name] = asyncio.create_task(_ended(name, worker))
        elif task := running.pop(told["stop"], None):
            task.cancel()


def _shared(options: WorkerOptions) -> Host | None:
    if not (sink := os.environ.get(LIGHT, "")):
        return None
    return Host(options.security, actor_pool=options.pool, learner_pool=sink, param_store=options.param_store)


async def _ended(name: str, worker: Awaitable[None]) -> None:
    try:
        await worker
    except MarlessError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)  # the pool's log
    finally:
        print(name, flush=True)  # read by `Crowd`


def _hosting(arguments: Sequence[str]) -> None:
    configure_logging()

    def options(name: str, handover: Handover) -> WorkerOptions:
        plain = worker_options("crowd", Role.ACTOR, [*arguments, "--worker", name])
        security = replace(plain.security, token=handover.token)
        return WorkerOptions(
            name,
            pool=plain.pool,
            param_store=plain.param_store,
            security=security,
            launched=False,
            handover=handover,
            watchdog=Watchdog(),
            caches=plain.caches,
            relay=plain.relay,
        )

    asyncio.run(host(options))


def main() -> None:
    """Serve the pool, or with --hosting be one of its processes of workers."""
    if sys.argv[1:2] == ["--hosting"]:
        _hosting(sys.argv[2:])
        os._exit(0)
    options = parse(sys.argv[1:])
    sys.exit(run("actor_pool", options.server, partial(build, options, make=Crowd)))


if __name__ == "__main__":
    main()
