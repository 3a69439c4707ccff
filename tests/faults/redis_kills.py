"""R3 and R5: Redis is killed under writers that compete. What was acknowledged stays, whole and once; and a writer
that got no answer repeats its request until it knows what came of it.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from marless.core.errors import ConflictError, UnavailableError
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from tests.faults.store_process import StoreProcess

JOB = "job"
POLICIES = ("a", "b")
WRITERS = 4
PAYLOAD_BYTES = 20_000


class Writer:
    """Publishes to one policy as fast as it can, in competition with others."""

    def __init__(self, name: int, policy: str, address: str, seed: int) -> None:
        self.name, self.policy = name, policy
        self.peer = Peer(address, Security())
        self.store = ParamStore(self.peer, patience_s=0.0)
        self.rng = random.Random(f"{seed}/{name}")
        self.acknowledged: dict[int, bytes] = {}
        self.unanswered = self.resolved = 0
        """Calls without an answer, and publishes that took more than one call and succeeded."""
        self.stopping = False

    async def run(self, progress: asyncio.Queue[int]) -> None:
        head = serial = 0
        while not self.stopping:
            serial += 1
            req_id = f"{self.name}/{serial}"
            blob = req_id.encode() + b"|" + self.rng.randbytes(PAYLOAD_BYTES)
            try:
                version = await self.publish(PolicyWrite(self.policy, head, req_id, {"acting": blob}))
            except ConflictError:
                head = await self.head()
            else:
                assert version not in self.acknowledged, f"version {version} was given to {self.name} twice"
                self.acknowledged[version] = blob
                head = version
                await progress.put(version)

    async def publish(self, write: PolicyWrite) -> int:
        calls = 0
        while True:
            calls += 1
            try:
                version = (await self.store.publish(JOB, 0, 0, [write]))[self.policy]
            except UnavailableError:
                self.unanswered += 1
                await asyncio.sleep(self.rng.uniform(0, 0.05))
            else:
                self.resolved += calls > 1
                return version

    async def head(self) -> int:
        return (await ParamStore(self.peer).list(JOB)).policies[self.policy].head.version


async def run(seed: int, place: Path, *, kills: int) -> dict[str, int]:
    """Raises AssertionError if anything acknowledged is lost, torn or doubled; returns counts."""
    moments = random.Random(seed)
    async with StoreProcess(place) as store:
        writers = [Writer(number, POLICIES[number % 2], store.address, seed) for number in range(WRITERS)]
        progress: asyncio.Queue[int] = asyncio.Queue(maxsize=1000)
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run(progress))
            for _ in range(kills):
                for _ in range(moments.randrange(5, 40)):
                    await progress.get()
                while not await store.kill_redis():  # it is dead, and about to come back
                    await progress.get()
            for _ in range(20):  # life goes on
                await progress.get()
            for writer in writers:
                writer.stopping = True
        for policy in POLICIES:
            await _check(policy, [writer for writer in writers if writer.policy == policy])
        for writer in writers:
            await writer.peer.close()
    return {
        "kills": kills,
        "acknowledged": sum(len(writer.acknowledged) for writer in writers),
        "lost": 0,
        "torn": 0,
        "unanswered calls": sum(writer.unanswered for writer in writers),
        "resolved by req_id": sum(writer.resolved for writer in writers),
    }


async def _check(policy: str, writers: list[Writer]) -> None:
    """Versions are dense, and each is what its one writer wrote and was told of."""
    store = ParamStore(writers[0].peer)
    listed = (await store.list(JOB)).policies[policy]
    assert listed.versions == tuple(range(1, listed.head.version + 1)), "a version is lost"
    acknowledged: dict[int, bytes] = {}
    for writer in writers:
        assert not acknowledged.keys() & writer.acknowledged.keys(), "a version was given to two writers"
        acknowledged |= writer.acknowledged
    stored = {}
    for version in listed.versions:
        read = await store.get(JOB, {policy: version}, ["acting"])  # checks the sha256
        stored[version] = bytes(read[policy].blobs["acting"])
    assert len(set(stored.values())) == len(stored), "one write made two versions"
    assert stored.keys() == acknowledged.keys(), "a writer took its own success for a conflict"
    assert stored == acknowledged, "a version is not what was written"
