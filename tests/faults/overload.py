"""R13: ten times as many callers as keep a service busy. It does no less, refuses the rest for now, and stays small."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from marless.core.errors import OverloadedError, UnreachableError
from marless.core.limits import MAX_ACTORS
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from marless.services.coordinator import __main__ as coordinator
from marless.services.coordinator.config import CoordinatorConfig
from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.coordinator.jobs.jobs import Jobs, JobsOptions
from marless.services.coordinator.jobs.submission import MAX_AT_ONCE
from tests.faults.pools import RunningPools, running_pools, small_job
from tests.faults.uploads import UPLOADERS, Send, Storm

CALLERS, TIMES = 64, 10
"""More than the 512 RPCs at once that a service takes; those beyond are refused by gRPC itself."""
TURNS = 3
"""Few callers and many take turns: whatever else the machine does befalls both."""
GROWTH_BYTES = 512 * 2**20
BLOB = bytes(20_000)
SUBMIT_TIMEOUT_S = 60.0
Operation = Callable[[int], Awaitable[object]]
"""Given its caller, who shares a connection with `CALLERS` others."""


async def run(place: Path, *, seconds: float, least: float, turns: int = TURNS) -> Mapping[str, float]:
    """Drive each kind of call for so long with few callers, and as long with ten times as many.

    The share of goodput that is kept must be `least`. Pools and callers are one process, whose growth counts for both.
    """
    figures: dict[str, float] = {}
    async with (
        running_pools(place, actor_workers=2) as running,
        _Uploads(running) as uploads,
        _Submissions(place) as submissions,
    ):
        store = psutil.Process(await _pid_of_store(running))
        operations = await _operations(running, uploads) | {"submits": submissions.submit}
        for name, operation in operations.items():
            before, alone, crowded = _resident(store), _Tally(), _Tally()
            few = MAX_AT_ONCE if name == "submits" else CALLERS
            for _ in range(turns):
                await _drive(operation, few, seconds / turns, alone)
                await _drive(operation, few * TIMES, seconds / turns, crowded)
            share, grown = crowded.goodput / alone.goodput, _resident(store) - before
            told = f"{crowded.goodput:.0f} a second of {alone.goodput:.0f} under overload"
            assert share >= least, f"{name}: {told}, {crowded.refused:,} refused"
            assert alone.cut == 0, f"{name}: {alone.cut:,} calls of few callers were cut"
            assert crowded.cut <= max(crowded.refused // 100, 3), (
                f"{name}: {crowded.cut:,} cut, {crowded.refused:,} refused"
            )
            assert grown <= GROWTH_BYTES, f"{name}: {grown:,} bytes more under overload"
            figures |= {f"{name} kept (%)": round(100 * share), f"{name} refused": crowded.refused}
        uploads.check()
        submissions.check()
    return figures


async def _pid_of_store(running: RunningPools) -> int:
    [found] = [
        each.pid
        for each in psutil.Process().children(recursive=True)
        if running.store_address in each.cmdline() and "marless.services.param_store" in each.cmdline()
    ]
    return found


def _resident(store: psutil.Process) -> int:
    return int(psutil.Process().memory_info().rss + store.memory_info().rss)


async def _operations(running: RunningPools, uploads: _Uploads) -> dict[str, Operation]:
    """Calls that are answered or refused at once, but for uploads, which try again by themselves."""
    peers = [Peer(running.store_address, Security(), "param_store") for _ in range(TIMES)]
    stores = [ParamStore(peer, patience_s=0.0) for peer in peers]
    pools = [
        ServicePools(Peer(running.actors.address, Security(), "actor_pool"), running.actors, running.store)
        for _ in peers
    ]
    serial = count()

    async def publish(caller: int) -> None:
        number = next(serial)
        write = PolicyWrite(policy=f"p{number % 1000}", expected=0, req_id=f"r{number % 1000}", blobs={"acting": BLOB})
        await stores[caller // CALLERS].publish("blobs", 0, 0, [write])

    async def get(caller: int) -> None:
        await stores[caller // CALLERS].get("blobs", {"p0": 1}, ["acting"])

    async def roll_out(caller: int) -> None:
        await pools[caller // CALLERS].play_randomly("baseline", small_job(), 0, 4, background=False)

    await publish_first(running.store)
    return {"publishes": publish, "gets": get, "uploads": uploads.upload, "rollouts": roll_out}


async def publish_first(store: ParamStore) -> None:
    """What all gets read."""
    await store.publish("blobs", 0, 0, [PolicyWrite(policy="p0", expected=0, req_id="r0", blobs={"acting": BLOB})])


class _Uploads:
    """Uploads that are all new ones: one of each possible actor for a round, while the other job's last round ends."""

    def __init__(self, running: RunningPools) -> None:
        self._running = running
        self._jobs = [Storm(f"overload-{number}", small_job(), running, running.learner_address) for number in range(2)]
        self._serial = count()
        self._left: defaultdict[int, int] = defaultdict(lambda: MAX_ACTORS)
        self._over: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._taken = 0

    async def __aenter__(self) -> _Uploads:
        for job in self._jobs:
            await job.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        for job in self._jobs:
            await job.close()

    async def upload(self, caller: int) -> None:
        """One that the pool has not seen."""
        batch, index = divmod(next(self._serial), MAX_ACTORS)
        if batch >= len(self._jobs):
            await self._over[batch - len(self._jobs)].wait()
        round_, number = divmod(batch, len(self._jobs))
        job = self._jobs[number]
        try:
            await job.upload(Send(round_, index, job.epoch), caller % UPLOADERS)
            self._taken += 1
        finally:
            self._left[batch] -= 1
            if not self._left[batch]:
                self._running.buffer.advance(job.name, round_ + 1)
                self._over[batch].set()

    def check(self) -> None:
        """Raises AssertionError unless each upload that was answered was read, checked and stored."""
        applied = self._running.buffer.counts.applied
        assert applied >= self._taken, f"{self._taken:,} uploads were answered, {applied:,} stored"


class _Submissions:
    """New jobs of a coordinator that runs none. Each is cancelled once it was accepted, as room for the next one."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._jobs: list[Jobs] = []
        self._serial = count()
        self._spec_json = small_job().spec.to_json()
        self._stack = AsyncExitStack()
        self._peers: list[Peer] = []
        self._accepted = 0

    async def __aenter__(self) -> _Submissions:
        def jobs(*given: Any) -> Jobs:  # Any: as `Jobs`
            self._jobs.append(Jobs(*given))
            return self._jobs[-1]

        nowhere = dict.fromkeys(("actor_pool", "learner_pool", "param_store"), "unix:/nowhere")
        options = ServerOptions(f"unix:{self._place}/coordinator.sock", Security())
        config = CoordinatorConfig(options, nowhere, self._place / "runs", JobsOptions(running=0))
        self._stack.enter_context(mock.patch.object(coordinator, "Jobs", jobs))
        address = await self._stack.enter_async_context(serving(options, lambda at: coordinator.build(config, at)))
        self._peers = [Peer(address, Security(), "coordinator") for _ in range(TIMES)]
        for peer in self._peers:
            self._stack.push_async_callback(peer.close)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def submit(self, caller: int) -> None:
        """One that the coordinator has not seen."""
        job = f"job-{next(self._serial)}"
        request = coordinator_pb2.SubmitJobRequest(job=job, spec_json=self._spec_json, request_id=job)
        peer = self._peers[caller // CALLERS]
        await peer.call(CoordinatorServiceStub(peer.channel).SubmitJob, request, timeout_s=SUBMIT_TIMEOUT_S)
        self._accepted += 1
        await self._jobs[0].cancel(job)

    def check(self) -> None:
        """Raises AssertionError unless each job that was accepted is there, and none that was refused."""
        states = self._jobs[0].index.states()
        assert states["CANCELLED"] == states.total() == self._accepted, f"{self._accepted:,} accepted, {dict(states)}"


@dataclass
class _Tally:
    answered: int = 0
    refused: int = 0
    cut: int = 0
    """Refusals that reached a client which was still writing: gRPC then says that the connection has ended."""
    took_s: float = 0.0

    @property
    def goodput(self) -> float:
        """Answers a second."""
        return self.answered / self.took_s


async def _drive(operation: Operation, callers: int, seconds: float, tally: _Tally) -> None:
    """Call for so long, and until the last answer; any error but a refusal is raised."""
    began_s = time.monotonic()
    until_s = began_s + seconds

    async def call(caller: int) -> None:
        while time.monotonic() < until_s:
            try:
                await operation(caller)
                tally.answered += 1
            except UnreachableError:
                tally.cut += 1
            except OverloadedError as refusal:
                tally.refused += 1
                assert refusal.retry_after_s > 0
                await asyncio.sleep(min(refusal.retry_after_s, max(0.0, until_s - time.monotonic())))

    await asyncio.gather(*map(call, range(callers)))
    tally.took_s += time.monotonic() - began_s
