"""What the coordinator tells the pools about one another."""

import hashlib
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from marless.core.errors import CorruptError
from marless.core.group import LaneRecord
from marless.jobs import spec as specs
from marless.jobs.job import prepare
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1 import actor_pool_pb2, learner_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceServicer, add_ActorPoolServiceServicer_to_server
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceServicer, add_LearnerPoolServiceServicer_to_server
from marless.services.coordinator.execution.service_pools import ServicePools

JOB = {"env": {"name": "game/matrix"}, "algorithm": "ippo", "stop": {"rounds": 1}}


class Actors(ActorPoolServiceServicer):
    def __init__(self) -> None:
        self.sinks: list[str] = []
        self.receipts: list[actor_pool_pb2.RolloutReceipt] = []

    async def Rollout(self, request, context):  # noqa: N802  # gRPC names
        self.sinks.append(request.settings.sink)
        return actor_pool_pb2.RolloutResponse(receipts=self.receipts)


class Learners(LearnerPoolServiceServicer):
    def __init__(self, address: str) -> None:
        self.address = address

    async def OpenJob(self, request, context):  # noqa: N802
        return learner_pool_pb2.OpenJobResponse(address=self.address)


@asynccontextmanager
async def pools_of(tmp_path, actors: Actors, learners: Learners):
    """Clients of these servicers."""
    async with AsyncExitStack() as stack:

        async def peer(name, register) -> Peer:
            @asynccontextmanager
            async def build(_address):
                yield ServedService(register)

            options = ServerOptions(f"unix:{tmp_path}/{name}.sock", Security())
            dialled = Peer(await stack.enter_async_context(serving(options, build)), Security())
            stack.push_async_callback(dialled.close)
            return dialled

        peers = [
            await peer("actors", partial(add_ActorPoolServiceServicer_to_server, actors)),
            await peer("learners", partial(add_LearnerPoolServiceServicer_to_server, learners)),
        ]
        yield ServicePools(*peers, ParamStore(peers[1])), peers


@pytest.mark.parametrize("address", ["learners.example.org:7070", ""])
async def test_actors_upload_to_the_address_that_the_learner_pool_advertises(tmp_path, address):
    actors = Actors()
    async with pools_of(tmp_path, actors, Learners(address)) as (pools, peers):
        job = prepare(specs.parse(JOB, "spec"))
        groups = job.sharing.decide(()).groups
        await pools.open_job("job", job, 1, groups, round_=0)
        await pools.train("job", job, 0, 1, groups, {}, epoch=1)
    assert actors.sinks == [address or peers[1].address]


async def test_carries_that_return_are_those_that_receipts_name(tmp_path):
    actors, digest = Actors(), hashlib.sha256(b"state").hexdigest()
    lane = actor_pool_pb2.Lane(lane=0, version=4, digest=digest)
    actors.receipts = [actor_pool_pb2.RolloutReceipt(index=0, lane=lane, carry=b"state")]
    async with pools_of(tmp_path, actors, Learners("")) as (pools, _):
        job = prepare(specs.parse(JOB, "spec"))
        groups = job.sharing.decide(()).groups
        known = LaneRecord(lane=0, version=4, digest=digest)
        rollout = await pools.train("job", job, 0, 1, groups, {}, epoch=1)
        assert (rollout.lanes, rollout.carries) == ((known,), {known: b"state"})
        actors.receipts[0].carry = b""  # published by the actor
        rollout = await pools.train("job", job, 0, 1, groups, {}, epoch=1)
        assert (rollout.lanes, rollout.carries) == ((known,), {})
        actors.receipts[0].carry = b"other"
        with pytest.raises(CorruptError, match="the carry that actor 0 has returned is not the one"):
            await pools.train("job", job, 0, 1, groups, {}, epoch=1)
