"""The services of marless as simulated processes: they are started, killed, paused, and started again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from marless.core.errors import MarlessError
from marless.core.machine import Machine
from marless.fleet.handover import Handover
from marless.fleet.launchers.base import ACCEPTED, Launch, Launcher, LaunchOrder, Options, WorkerProgram
from marless.fleet.worker_process import WorkerOptions
from marless.jobs.job import PreparedJob
from marless.learning.algos import registry as algorithms
from marless.rpc import server as servers
from marless.rpc.client import Peer
from marless.rpc.concurrency import retry
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.actor_pool import worker as actor_worker
from marless.services.actor_pool.__main__ import ActorPoolConfig
from marless.services.coordinator import __main__ as coordinator
from marless.services.coordinator.api import monitoring
from marless.services.coordinator.config import CoordinatorConfig
from marless.services.coordinator.jobs.jobs import JobsOptions
from marless.services.learner_pool import __main__ as learner_pool
from marless.services.learner_pool import spool
from marless.services.learner_pool import worker as learner_worker
from marless.services.learner_pool.config import LearnerPoolConfig
from marless.services.param_store import __main__ as param_store
from marless.services.param_store import redis_server
from marless.services.param_store.__main__ import ParamStoreConfig
from marless.services.param_store.redis_server import Provided, RedisOptions
from tests.simulation.canned import Canned, CannedLearner
from tests.simulation.loop import Process, VirtualLoop, present
from tests.simulation.redis import MemoryRedis

SERVICES = ("coordinator", "actor_pool", "learner_pool", "param_store")
JOB = "job"
LEASE_S = 2.0
QUIET_S = 5.0
"""Seconds between checks of health, which are frequent in production and would be most events of a simulation."""
LATE_S = 0.3
"""Seconds within which the workers of a dead pool notice that it is gone."""
POLL_S = 0.25


def address(service: str) -> str:
    return f"unix:/simulated/{service}"


class System:
    """All processes of one simulation. `directory` holds the run folders and the spool."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, directory: Path, job: PreparedJob) -> None:
        self.loop = loop
        self.job = job
        self.redis = MemoryRedis(loop, chance)
        self.runs, self.spool = directory / "runs", directory / "spool"
        self.spool.mkdir(mode=0o700)
        self.running: dict[str, Process] = {}
        """The present process of each service."""
        self.workers: dict[str, Process] = {}
        self.died: Callable[[Process], None] = lambda process: None
        """Called when a process is dead."""
        self.wiped: Callable[[], None] = lambda: None
        """Called when the store has lost everything."""
        self.ending: dict[str, asyncio.Event] = {}
        """Set to have a service stop in order."""
        self.state = ""
        """The job's last state, once it has ended."""
        self.reason = ""
        self._chance = chance
        self._serial = 0

    def process(self, name: str) -> Process:
        """A new process of this kind."""
        self._serial += 1
        process = Process(self.loop, f"{name}-{self._serial}")
        process.ended.append(lambda: self.died(process))
        return process

    # Services

    def start(self, service: str) -> None:
        """Start a service, in the place of one that has ended."""
        process = self.running[service] = self.process(service)
        self.ending[service] = asyncio.Event()
        process.start(self._serve(service, self.ending[service]))

    async def _serve(self, service: str, ending: asyncio.Event) -> None:
        options = ServerOptions(address(service), Security())
        with suppress(MarlessError):
            async with serving(options, self._build(service, options)):
                await ending.wait()

    def _build(self, service: str, options: ServerOptions) -> Callable[[str], Any]:
        store = address("param_store")
        if service == "param_store":
            config = ParamStoreConfig(options, RedisOptions(url="redis://memory"), keep=3, intake_bytes=2**26)
            return partial(param_store.build, config)
        if service == "coordinator":
            peers = {name: address(name) for name in SERVICES if name != "coordinator"}
            given = CoordinatorConfig(options, peers, self.runs, JobsOptions(lease_s=LEASE_S))
            return partial(coordinator.build, given)
        make: Callable[[WorkerProgram, Options], Launcher] = partial(_Launcher, self, service)
        if service == "actor_pool":
            pool = ActorPoolConfig(options, store, workers=2, warm=1, keep_alive_s=600)
            return partial(actor_pool.build, pool, make=make)
        workers = 2 if self.job.spec.schedule.overlapping else 1
        learners = LearnerPoolConfig(
            options, store, workers=workers, threads=1, warm=1, keep_alive_s=600, spool=self.spool, spool_bytes=2**24
        )
        return partial(learner_pool.build, learners, make=make)

    @asynccontextmanager
    async def _provided(self, _options: RedisOptions) -> AsyncIterator[Provided]:
        yield Provided("redis://memory")

    @asynccontextmanager
    async def _connected(self, _provided: Provided) -> AsyncIterator[MemoryRedis]:
        await self.redis.info()
        yield self.redis

    # Workers

    def work(self, pool: str, order: LaunchOrder) -> Process:
        """Start a worker of a pool."""
        process = self.process(f"{pool.partition('_')[0]}")
        self.workers[process.name] = process
        options = WorkerOptions(
            order.worker,
            pool=address(pool),
            param_store=address("param_store"),
            security=Security(),
            launched=False,
            handover=Handover(ticket=order.ticket),
            background="--background" in order.arguments,
            machine=Machine(id="m-1"),
        )
        process.start(self._work(pool, options))
        return process

    async def _work(self, pool: str, options: WorkerOptions) -> None:
        with suppress(MarlessError):
            if pool == "actor_pool":
                await actor_worker.run(options, Canned(self.job).actor)
            else:
                await learner_worker.run(options)

    # A client

    async def use(self) -> None:
        """Submit the job, and ask for its state until it has ended."""
        peer = Peer(address("coordinator"), Security(), "coordinator")
        stub: Any = CoordinatorServiceStub(peer.channel)
        submit = coordinator_pb2.SubmitJobRequest(job=JOB, spec_json=self.job.spec.to_json(), request_id="only")
        await retry(lambda: peer.call(stub.SubmitJob, submit), patience_s=600.0)
        while True:
            with suppress(MarlessError):
                job = (await peer.call(stub.GetJob, coordinator_pb2.GetJobRequest(job=JOB))).job
                state = coordinator_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")
                if state in ("SUCCEEDED", "FAILED", "CANCELLED"):
                    self.state, self.reason = state, job.reason
                    return
            await asyncio.sleep(POLL_S)


class _Launcher:
    """A pool's launcher of simulated workers."""

    connect_s = 15.0  # more than the longest cut: jobs whose workers cannot connect for so long fail, on purpose

    def __init__(self, system: System, pool: str, _program: WorkerProgram, _options: Options) -> None:
        self._system = system
        self._pool = pool
        self._started: dict[str, Process] = {}
        owner = present()
        assert owner is not None
        owner.ended.append(self._orphan)

    def capacity(self) -> None:
        return

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        await asyncio.sleep(self._system._chance.uniform(0.001, 0.02))
        for order in orders:
            self._started[order.worker] = self._system.work(self._pool, order)
        return [ACCEPTED for _ in orders]

    async def observe(self, worker: str) -> str:
        process = self._started[worker]
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        owner = present()
        assert owner is not None

        def tell() -> None:
            owner.later(0.001, lambda: ended.done() or ended.set_result(None))

        if process.alive:
            process.ended.append(tell)
            await ended
        return "killed"

    async def drain(self, worker: str, grace_s: float) -> None:
        process = self._started.get(worker)
        if process and process.alive:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.observe(worker)
            process.kill()

    async def close(self) -> None:
        for process in self._started.values():
            process.kill()

    def _orphan(self) -> None:
        """The pool is gone: its workers end when they notice."""
        for process in self._started.values():
            process.later(self._system._chance.uniform(0.0, LATE_S), process.kill)


def production(patched: pytest.MonkeyPatch, system: System) -> None:
    """Replace the parts of production code that compute, and those that start other programs."""
    patched.setattr(redis_server, "provided", system._provided)
    patched.setattr(param_store, "connected", system._connected)
    patched.setattr(learner_worker, "compute_side_by_side", lambda: None)
    patched.setattr(spool, "memory_backed", lambda: str(system.spool))
    algorithm = algorithms.algorithm(system.job.spec.algorithm.name)
    in_rounds = not system.job.spec.schedule.overlapping
    patched.setattr(type(algorithm), "learner", lambda _self, _config, context: CannedLearner(context, in_rounds))
    patched.setattr(servers, "HEALTH_PERIOD_S", QUIET_S)
    patched.setattr(monitoring, "PERIOD_S", QUIET_S)
    patched.setattr(monitoring, "EAGER_PERIOD_S", QUIET_S)
