"""R13: ten times as many callers as keep a service busy. It does no less, refuses the rest for now, and stays small."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from pathlib import Path

import psutil

from marless.errors import OverloadedError
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from services.coordinator.pools import Pools
from tests.faults.pools import RunningPools, running_pools, small_job
from tests.faults.uploads import UPLOADERS, Send, Storm

CALLERS, TIMES = 64, 10
"""More than the 512 RPCs at once that a service takes; those beyond are refused by gRPC itself."""
GROWTH_BYTES = 512 * 2**20
BLOB = bytes(20_000)
Operation = Callable[[int], Awaitable[object]]
"""Given its caller, who shares a connection with `CALLERS` others."""


async def run(place: Path, *, seconds: float, least: float) -> Mapping[str, float]:
    """Drive each kind of call for so long, first with few callers, then with ten times as many.

    The share of goodput that is kept must be `least`. Pools and callers are one process, whose growth counts for both.
    """
    figures: dict[str, float] = {}
    async with running_pools(place, actor_workers=2) as running:
        store = psutil.Process(await _pid_of_store(running))
        for name, operation in (await _operations(running)).items():
            before = _resident(store)
            alone, _ = await _drive(operation, CALLERS, seconds)
            crowded, refused = await _drive(operation, CALLERS * TIMES, seconds)
            share, grown = crowded / alone, _resident(store) - before
            assert share >= least, f"{name}: {crowded:.0f} a second of {alone:.0f} under overload, {refused} refused"
            assert grown <= GROWTH_BYTES, f"{name}: {grown:,} bytes more under overload"
            figures |= {f"{name} kept (%)": round(100 * share), f"{name} refused": refused}
    return figures


async def _pid_of_store(running: RunningPools) -> int:
    [found] = [
        each.pid
        for each in psutil.Process().children(recursive=True)
        if running.store_address in each.cmdline() and "services.param_store" in each.cmdline()
    ]
    return found


def _resident(store: psutil.Process) -> int:
    return int(psutil.Process().memory_info().rss + store.memory_info().rss)


async def _operations(running: RunningPools) -> dict[str, Operation]:
    """Calls that are answered or refused at once, but for uploads, which try again by themselves."""
    peers = [Peer(running.store_address, Security(), "param_store") for _ in range(TIMES)]
    stores = [ParamStore(peer, patience_s=0.0) for peer in peers]
    pools = [
        Pools(Peer(running.actors.address, Security(), "actor_pool"), running.actors, running.store) for _ in peers
    ]
    storm = Storm("overload", small_job(), running, running.learner_address)
    await storm.open()
    serial = count()

    async def publish(caller: int) -> None:
        number = next(serial)
        write = PolicyWrite(policy=f"p{number % 1000}", expected=0, req_id=f"r{number % 1000}", blobs={"acting": BLOB})
        await stores[caller // CALLERS].publish("blobs", 0, 0, [write])

    async def get(caller: int) -> None:
        await stores[caller // CALLERS].get("blobs", {"p0": 1}, ["acting"])

    async def upload(caller: int) -> None:
        number = next(serial)
        await storm.upload(Send(0, number % 100_000, storm.epoch), caller % UPLOADERS)

    async def roll_out(caller: int) -> None:
        await pools[caller // CALLERS].random_baseline("baseline", small_job(evaluation={"random_episodes": 4}))

    await publish_first(stores[0])
    return {"publishes": publish, "gets": get, "uploads": upload, "rollouts": roll_out}


async def publish_first(store: ParamStore) -> None:
    """What all gets read."""
    await store.publish("blobs", 0, 0, [PolicyWrite(policy="p0", expected=0, req_id="r0", blobs={"acting": BLOB})])


async def _drive(operation: Operation, callers: int, seconds: float) -> tuple[float, int]:
    """Answers a second, and how many calls were refused; any other error is raised."""
    counts: Counter[str] = Counter()
    until_s = time.monotonic() + seconds

    async def call(caller: int) -> None:
        while time.monotonic() < until_s:
            try:
                await operation(caller)
                counts["answered"] += 1
            except OverloadedError as refusal:
                counts["refused"] += 1
                assert refusal.retry_after_s > 0
                await asyncio.sleep(min(refusal.retry_after_s, max(0.0, until_s - time.monotonic())))

    began_s = time.monotonic()
    await asyncio.gather(*map(call, range(callers)))
    return counts["answered"] / (time.monotonic() - began_s), counts["refused"]
