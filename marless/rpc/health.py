"""The gRPC health check: its client, a server of it alone, and containers' probe, `python -m marless.rpc.health`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from marless.core.errors import MarlessError, SpecError
from marless.rpc.addresses import advertised
from marless.rpc.client import Peer
from marless.rpc.process import add_option, add_process_options
from marless.rpc.security import Security

TIMEOUT_S = 1.0
MOST_PROBES = 16
"""Calls at once to a server of the health check alone."""
_REQUEST_BYTES = 1024


async def is_serving(peer: Peer, *, timeout_s: float = TIMEOUT_S) -> bool:
    """True if the service answers SERVING within `timeout_s`."""
    check = health_pb2_grpc.HealthStub(peer.channel).Check
    try:
        answer = await check(health_pb2.HealthCheckRequest(), timeout=timeout_s, metadata=peer.metadata)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@asynccontextmanager
async def probed(address: str, healthy: health.aio.HealthServicer) -> AsyncIterator[str]:
    """Serve the health check alone, to whoever asks; yields the address with its port.

    The nodes of Kubernetes have no certificate for their gRPC probes. They learn one word. Raises SpecError for an
    address that cannot be used.
    """
    options = (("grpc.max_receive_message_length", _REQUEST_BYTES), ("grpc.so_reuseport", 0))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MOST_PROBES)
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError:
        raise SpecError(f"--health {address}: give host:port with a free port of this machine") from None
    await server.start()
    try:
        yield f"{address.rpartition(':')[0]}:{bound}"
    finally:
        await server.stop(grace=None)


def main() -> int:
    """`python -m marless.rpc.health`: for containers. Exits 0 if the service of this machine that the same MARLESS_*
    variables configure is SERVING, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m marless.rpc.health", description="Is the service SERVING?")
    add_option(parser, "--listen", "", "address that the service listens on")
    add_option(parser, "--advertise", "", "address, or only the host, that others dial to reach it")
    add_process_options(parser)
    args = parser.parse_args()
    security = Security(tls_cert=args.tls_cert, tls_key=args.tls_key, tls_ca=args.tls_ca)
    try:
        serving = asyncio.run(_asked(advertised(args.listen, args.advertise), security))
    except MarlessError as error:
        sys.exit(f"health: {error}")
    return 0 if serving else 1


async def _asked(address: str, security: Security) -> bool:
    peer = Peer(address, security)
    try:
        return await is_serving(peer)
    finally:
        await peer.close()


if __name__ == "__main__":
    sys.exit(main())
