"""A bulk transfer whose connection ends is one that nobody answered: it is repeated, not taken for a defect."""

import asyncio
import random

from marless.core.errors import UnreachableError
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from tests.faults.proxy import Proxy, disturb, resetting

WRITERS, TIMES = 8, 150


async def test_connections_that_end_under_transfers(store_address, job):
    async with Proxy(store_address) as proxy:
        peer = Peer(proxy.address, Security())
        store = ParamStore(peer, patience_s=0.0)
        ended = 0

        async def publish(policy: str) -> None:
            nonlocal ended
            for _ in range(TIMES):
                try:
                    await store.publish(job, 0, 0, [PolicyWrite(policy, 0, "request", {"acting": bytes(1000)})])
                except UnreachableError:
                    ended += 1

        disturbing = asyncio.create_task(disturb(proxy, random.Random(0), every_s=0.005, how=[resetting]))
        async with asyncio.TaskGroup() as group:
            for number in range(WRITERS):
                group.create_task(publish(f"p{number}"))
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
        assert ended > WRITERS
        patient = ParamStore(peer)
        for number in range(WRITERS):
            write = PolicyWrite(f"p{number}", 0, "request", {"acting": bytes(1000)})
            assert await patient.publish(job, 0, 0, [write]) == {f"p{number}": 1}
        await peer.close()
