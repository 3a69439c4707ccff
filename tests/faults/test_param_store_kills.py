"""Redis is killed with signal 9 under writers that compete: what was acknowledged stays, whole and once."""

import asyncio
import os
import random
import signal

import pytest
from redis.asyncio import Redis

from marless.errors import ConflictError
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from services.param_store.__main__ import build
from services.param_store.config import Config
from services.param_store.redis_server import RedisOptions

JOB = "job"
POLICIES = ("a", "b")
KILLS = 5
PAYLOAD_BYTES = 20_000


class Writer:
    """Publishes to one policy as fast as it can, in competition with others."""

    def __init__(self, name: int, policy: str, store: ParamStore, seed: int) -> None:
        self.name, self.policy, self.store = name, policy, store
        self.random = random.Random(seed)
        self.acknowledged: dict[int, bytes] = {}
        self.stopping = False

    async def run(self, progress: asyncio.Queue[int]) -> None:
        head = attempt = 0
        while not self.stopping:
            attempt += 1
            req_id = f"{self.name}/{attempt}"
            blob = req_id.encode() + b"|" + self.random.randbytes(PAYLOAD_BYTES)
            try:
                written = await self.store.publish(
                    JOB, 0, 0, [PolicyWrite(self.policy, head, req_id, {"acting": blob})]
                )
            except ConflictError:
                head = (await self.store.list(JOB)).policies[self.policy].head.version
            else:
                head = written[self.policy]
                assert head not in self.acknowledged
                self.acknowledged[head] = blob
                await progress.put(head)


async def kill_redis(url: str) -> None:
    redis = Redis.from_url(url)
    pid = (await redis.info("server"))["process_id"]
    await redis.aclose()
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", [0, 1])
async def test_nothing_acknowledged_is_lost_torn_or_doubled(tmp_path, seed):
    server = ServerOptions(f"unix:{tmp_path}/store.sock", Security())
    config = Config(server, RedisOptions(data_dir=str(tmp_path)), keep=10**6, intake_bytes=2**26)
    async with serving(server, lambda address: build(config, address)) as address:
        peer = Peer(address, Security())
        store = ParamStore(peer)
        writers = [Writer(i, POLICIES[i % 2], store, seed + i) for i in range(4)]
        progress: asyncio.Queue[int] = asyncio.Queue()
        moments = random.Random(seed)
        async with asyncio.TaskGroup() as group:
            for writer in writers:
                group.create_task(writer.run(progress))
            for _ in range(KILLS):
                for _ in range(moments.randrange(10, 40)):
                    await progress.get()
                await kill_redis(f"unix://{tmp_path}/redis/redis.sock")
            for _ in range(20):  # life goes on
                await progress.get()
            for writer in writers:
                writer.stopping = True

        for policy in POLICIES:
            await check(store, policy, [writer for writer in writers if writer.policy == policy])
        await peer.close()


async def check(store: ParamStore, policy: str, writers: list[Writer]) -> None:
    listed = (await store.list(JOB)).policies[policy]
    assert listed.versions == tuple(range(1, listed.head.version + 1))
    acknowledged: dict[int, bytes] = {}
    for writer in writers:
        assert not acknowledged.keys() & writer.acknowledged.keys()
        acknowledged |= writer.acknowledged
    stored = {}
    for version in listed.versions:
        read = await store.get(JOB, {policy: version}, ["acting"])  # checks the sha256
        stored[version] = bytes(read[policy].blobs["acting"])
    assert stored == acknowledged  # so no writer took its own success for a conflict either
    assert len(set(stored.values())) == len(stored)
