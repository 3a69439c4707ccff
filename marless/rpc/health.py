"""Client of the gRPC health check."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.rpc.client import Peer

TIMEOUT_S = 1.0


async def is_serving(peer: Peer, *, timeout_s: float = TIMEOUT_S) -> bool:
    """True if the service answers SERVING within `timeout_s`."""
    check = health_pb2_grpc.HealthStub(peer.channel).Check
    try:
        answer = await check(health_pb2.HealthCheckRequest(), timeout=timeout_s, metadata=peer.metadata)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
