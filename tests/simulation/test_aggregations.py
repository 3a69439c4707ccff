"""Aggregations while Redis loses answers and calls are cut off: each gradient is applied exactly once."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping

import numpy as np
import pytest

from marless.core.errors import NotFoundError, UnavailableError
from marless.core.state import NetStep, PolicyState
from marless.learning.aggregation import gradient_file
from marless.learning.nets import serial
from marless.rpc import gradients
from marless.rpc.param_store import Aggregation, AggregationReply, WeightedGradient
from marless.services.param_store.aggregation import Aggregator
from marless.services.param_store.blobs import BlobPart, BlobUploads
from marless.services.param_store.store import VersionStore
from marless.services.param_store.versions import Write
from tests.simulation.loop import VirtualLoop
from tests.simulation.redis import MemoryRedis

ROUNDS = 12
STEPS = {"policy": NetStep(lr=0.01, eps=1e-8, max_grad_norm=1e9)}


class System:
    """Stores on one Redis that loses every third answer; a call may be cut off anywhere, as by a kill of its store."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.loop = VirtualLoop(self.chance)
        self.redis = MemoryRedis(self.loop, self.chance)
        self.applied = 0

    def store(self) -> VersionStore:
        return VersionStore(self.redis, str, keep=2)  # type: ignore[arg-type]  # as far as it is used

    async def publish(self, name: str, blobs: dict[str, bytes]) -> int:
        parts = tuple(BlobPart(part, len(data), hashlib.sha256(data).digest()) for part, data in blobs.items())
        write = Write(name, 0, f"first/{name}", parts, tuple(map(memoryview, blobs.values())))
        while True:
            try:
                return (await self.store().publish("job", 1, 0, [write]))[name]
            except UnavailableError:
                continue

    async def aggregate(self, wanted: Aggregation) -> AggregationReply:
        """As a client that repeats its call, at two stores at once now and then, until one has answered."""
        while True:
            stores = [Aggregator(self.store(), BlobUploads(2**20)) for _ in range(self.chance.choice((1, 1, 2)))]
            calls = [asyncio.create_task(store.run(wanted)) for store in stores]
            done, cut = await asyncio.wait(calls, timeout=self.chance.choice((0.001, 0.003, 0.01, 1.0)))
            for call in cut:
                call.cancel()
            found = await asyncio.gather(*done, *cut, return_exceptions=True)
            for answer in found:
                if isinstance(answer, AggregationReply):
                    return answer
                if not isinstance(answer, UnavailableError | asyncio.CancelledError):
                    raise answer

    async def begin(self) -> bytes:
        """Publish a policy; returns a file of a gradient for it."""
        zeros_D = np.zeros(2, np.float32)
        acting = {"policy.0.weight": np.ones((1, 1), np.float32), "policy.0.bias": np.ones(1, np.float32)}
        learning = {"policy.first": zeros_D, "policy.second": zeros_D, "policy.count": np.array(0)}
        first = serial.encode(PolicyState(acting, learning))
        await self.publish("a", dict(zip(("acting", "learning"), first, strict=True)))
        return gradient_file.encode({"a": {"policy": np.ones(2, np.float32)}})

    async def wanted(self, round_: int, count: int, file: bytes) -> Aggregation:
        """Publish gradients; returns the aggregation that applies them."""
        names = [gradients.name_of(4 * round_ + k, 0) for k in range(count)]
        sent = [{name: await self.publish(name, {gradients.PART: file})} for name in names]
        return Aggregation(
            job="job",
            epoch=1,
            round=round_,
            heads={"a": 1 + round_},
            gradients=[WeightedGradient(each, 1.0) for each in sent],
            steps=STEPS,
            separate=True,
        )

    async def run(self) -> None:
        file = await self.begin()
        self.redis.lossy = 0.3
        for round_ in range(ROUNDS):
            wanted = await self.wanted(round_, self.chance.randint(1, 4), file)
            made = await self.aggregate(wanted)
            self.applied += len(wanted.gradients)
            assert made.versions == {"a": 2 + round_}
            await self.check()

    async def check(self) -> None:
        """An optimizer that has made one step for each gradient, and no key of a gradient."""
        lossy, self.redis.lossy = self.redis.lossy, 0.0
        [head] = await self.store().read("job", [("a", 0)])
        blobs = await self.store().blobs("job", [(head, "acting"), (head, "learning")])
        assert serial.decode(*blobs).learning["policy.count"] == self.applied
        assert not [key for key in self.redis._data if b"gradient/" in key]
        assert {each.head.policy for each in (await self.store().listing("job"))[1]} == {"a"}
        self.redis.lossy = lossy


@pytest.mark.parametrize("seed", range(12))
def test_each_gradient_is_applied_once(seed):
    system = System(seed)
    system.loop.run_until_complete(system.run())
    system.loop.close()
    assert system.applied >= ROUNDS


class _Losing(VersionStore):
    """A store whose Redis loses everything just before it looks for a round that was published."""

    async def published(self, job: str, req_ids: Mapping[str, str]) -> dict[str, int] | None:
        self._redis.wipe()
        return await super().published(job, req_ids)


async def test_a_repeated_aggregation_after_which_redis_loses_everything_finds_nothing_there():
    """Not that the policy is at another version than expected, which would end the job."""
    system = System(0)
    wanted = await system.wanted(0, 1, await system.begin())
    await system.aggregate(wanted)
    with pytest.raises(NotFoundError, match="no version any more"):
        await Aggregator(_Losing(system.redis, str, keep=2), BlobUploads(2**20)).run(wanted)
