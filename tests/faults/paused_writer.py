"""R7, at the store: a writer is paused while another takes its place. When it wakes up, nothing of it is written."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from marless.core.errors import ConflictError
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from tests.faults.store_process import StoreProcess

JOB, POLICY = "job", "p"
ANSWER_S = 30.0


async def run(seed: int, place: Path, *, times: int) -> dict[str, int]:
    """Raises AssertionError if anything is written after the fence; returns counts."""
    rng = random.Random(seed)
    published = 0
    async with StoreProcess(place) as running:
        peer = Peer(running.address, Security())
        store = ParamStore(peer)
        async with _zombie(running.address) as zombie:
            head = 0
            for time in range(times):
                epoch = await store.acquire_epoch(JOB, f"zombie/{time}")
                zombie.stdin.write(f"{epoch} {head}\n".encode())
                for _ in range(rng.randrange(1, 6)):
                    published += _version(await _line(zombie)) > 0
                await asyncio.sleep(rng.uniform(0, 0.01))
                zombie.send_signal(signal.SIGSTOP)
                epoch = await store.acquire_epoch(JOB, f"successor/{time}")
                head = await _succeed(store, epoch)
                zombie.send_signal(signal.SIGCONT)
                while version := _version(await _line(zombie)):  # said before it was paused, or of before the fence
                    published += 1
                    assert version < head, f"version {version} was written by a zombie, after the fence"
                assert (await store.list(JOB)).policies[POLICY].head.version == head
        await peer.close()
    return {"pauses": times, "published before": published, "written after the fence": 0}


async def _succeed(store: ParamStore, epoch: int) -> int:
    """Publish once as the new owner, on whatever is the head; returns the version."""
    while True:
        listed = (await store.list(JOB)).policies
        head = listed[POLICY].head.version if listed else 0
        try:
            written = await store.publish(
                JOB, epoch, 0, [PolicyWrite(POLICY, head, f"successor/{epoch}/{head}", {"acting": b"x"})]
            )
        except ConflictError:
            continue  # the zombie's last publish was in the store's hands already
        return written[POLICY]


@asynccontextmanager
async def _zombie(address: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.faults.zombie",
        address,
        JOB,
        POLICY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def _line(zombie: asyncio.subprocess.Process) -> str:
    assert zombie.stdout
    line = (await asyncio.wait_for(zombie.stdout.readline(), ANSWER_S)).decode().strip()
    assert line, "the zombie died"
    return line


def _version(line: str) -> int:
    """The version that it says it published; 0 if it says that it was fenced."""
    word, _, version = line.partition(" ")
    assert word in ("published", "fenced"), line
    return int(version or 0)
