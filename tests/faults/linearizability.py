"""R4: what 16 clients saw of the versioned register, while everything between and below fails, has one order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.faults.proxy import Proxy, disturb
from tests.faults.recording import Client, Recording, load, read_everything
from tests.faults.register import check
from tests.faults.store_process import StoreProcess

CLIENTS = 16


async def run(
    seed: int, place: Path, *, operations: int, redis_kills: int, store_kills: int, disturb_every_s: float = 0.4
) -> dict[str, int]:
    """Raises NotLinearizableError if the history is not; returns what it consisted of."""
    rng = random.Random(seed)
    kills = ["redis"] * redis_kills + ["store"] * store_kills
    rng.shuffle(kills)
    moments = dict(
        zip(
            sorted(rng.sample(range(operations // 10, operations // 2 + operations // 4), len(kills))),
            kills,
            strict=True,
        )
    )
    recording = Recording()
    async with StoreProcess(place) as store, Proxy(store.address, f"unix:{place}/proxy.sock") as proxy:
        clients = [
            Client(number, proxy.address, recording, seed, patience_s=rng.choice((0.05, 1.0, 20.0)))
            for number in range(CLIENTS)
        ]
        async with asyncio.TaskGroup() as group:
            disturbing = group.create_task(disturb(proxy, rng, every_s=disturb_every_s))
            killing = group.create_task(_kill(store, recording, moments))
            await load(clients, operations)
            await killing
            disturbing.cancel()
        for client in clients:
            await client.close()
        versions = await _final_reads(store.address, recording, seed)
    check(recording.operations)
    return {
        "operations": len(recording.operations),
        "versions": versions,
        "unanswered": recording.unanswered,
        "Redis kills": redis_kills,
        "store kills": store_kills,
        "resets": proxy.resets,
    }


async def _kill(store: StoreProcess, recording: Recording, moments: dict[int, str]) -> None:
    """Kill what is named once so many operations have been recorded."""
    reached = asyncio.Event()
    recording.called = reached.set
    for moment, victim in moments.items():
        while recording.calls < moment:
            reached.clear()
            await reached.wait()
        if victim == "store":
            store.kill()
        while victim == "redis" and not await store.kill_redis():
            reached.clear()  # it is dead, and about to come back
            await reached.wait()


async def _final_reads(address: str, recording: Recording, seed: int) -> int:
    """By clients that wait until the store is back, and whom nothing disturbs."""
    clients = [Client(CLIENTS + number, address, recording, seed, patience_s=60.0) for number in range(4)]
    versions = await read_everything(clients)
    for client in clients:
        await client.close()
    return versions
