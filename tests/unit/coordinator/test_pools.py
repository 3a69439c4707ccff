"""What the coordinator tells the pools about one another."""

from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from marless import spec as specs
from marless.job import prepare
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, Service, serving
from marless.rpc.v1 import actor_pool_pb2, learner_pool_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceServicer, add_ActorPoolServiceServicer_to_server
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceServicer, add_LearnerPoolServiceServicer_to_server
from services.coordinator.pools import Pools

JOB = {"env": {"name": "game/matrix"}, "algorithm": "ippo", "stop": {"rounds": 1}}


class Actors(ActorPoolServiceServicer):
    def __init__(self) -> None:
        self.sinks: list[str] = []

    async def Rollout(self, request, context):  # noqa: N802  # gRPC names
        self.sinks.append(request.settings.sink)
        return actor_pool_pb2.RolloutResponse()


class Learners(LearnerPoolServiceServicer):
    def __init__(self, address: str) -> None:
        self.address = address

    async def OpenJob(self, request, context):  # noqa: N802
        return learner_pool_pb2.OpenJobResponse(address=self.address)


@pytest.mark.parametrize("address", ["learners.example.org:7070", ""])
async def test_actors_upload_to_the_address_that_the_learner_pool_advertises(tmp_path, address):
    actors, learners = Actors(), Learners(address)
    async with AsyncExitStack() as stack:

        async def peer(name, register) -> Peer:
            @asynccontextmanager
            async def build(_address):
                yield Service(register)

            options = ServerOptions(f"unix:{tmp_path}/{name}.sock", Security())
            dialled = Peer(await stack.enter_async_context(serving(options, build)), Security())
            stack.push_async_callback(dialled.close)
            return dialled

        peers = [
            await peer("actors", partial(add_ActorPoolServiceServicer_to_server, actors)),
            await peer("learners", partial(add_LearnerPoolServiceServicer_to_server, learners)),
        ]
        pools, job = Pools(*peers, ParamStore(peers[1])), prepare(specs.parse(JOB, "spec"))
        groups = job.sharing.decide(()).groups
        await pools.open_job("job", job, 1, groups, round_=0)
        await pools.train("job", job, 0, 1, groups, {}, epoch=1)
    assert actors.sinks == [address or peers[1].address]
