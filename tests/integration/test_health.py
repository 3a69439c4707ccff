"""The port of the health check alone: what nodes of Kubernetes, which have no certificate, ask."""

import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.core.errors import SpecError
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def served(ready):
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def build(_address):
        yield ServedService(lambda _server: None, ready)

    return build


async def test_it_tells_whether_the_service_is_ready_and_serves_nothing_else():
    async def never():
        return False

    for ready, status in ((None, "SERVING"), (never, "NOT_SERVING")):
        address = f"127.0.0.1:{free_port()}"
        options = ServerOptions("127.0.0.1:0", Security(), health=address)
        build = served(ready) if ready else served(ServedService.ready)
        async with serving(options, build), grpc.aio.insecure_channel(address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == status
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/marless.rpc.v1.ActorPoolService/ListWorkers")(b"")
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("address", ["7071", "127.0.0.1:port", "192.0.2.200:7071"])
async def test_an_address_that_cannot_be_used_is_told(address):
    options = ServerOptions("127.0.0.1:0", Security(), health=address)
    with pytest.raises(SpecError, match=f"--health {address}: give host:port with a free port of this machine"):
        async with serving(options, served(ServedService.ready)):
            pass
