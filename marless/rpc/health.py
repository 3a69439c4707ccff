"""Client of the gRPC health check, and the probe of containers: `python -m marless.rpc.health`."""

from __future__ import annotations

import argparse
import asyncio
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.core.errors import MarlessError
from marless.rpc.addresses import advertised
from marless.rpc.client import Peer
from marless.rpc.process import add_option, add_process_options
from marless.rpc.security import Security

TIMEOUT_S = 1.0


async def is_serving(peer: Peer, *, timeout_s: float = TIMEOUT_S) -> bool:
    """True if the service answers SERVING within `timeout_s`."""
    check = health_pb2_grpc.HealthStub(peer.channel).Check
    try:
        answer = await check(health_pb2.HealthCheckRequest(), timeout=timeout_s, metadata=peer.metadata)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


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
