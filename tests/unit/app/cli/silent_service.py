"""A service that answers health checks until SIGUSR2, and then sleeps in its event loop, or holds Python's lock."""

import asyncio
import ctypes
import signal
import sys
import time

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


async def serve(address: str, how: str) -> None:
    server = grpc.aio.server()
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    server.add_insecure_port(address)
    await server.start()
    await healthy.set("", health_pb2.HealthCheckResponse.SERVING)
    hang = {"sleeps": lambda: time.sleep(1000), "holds": lambda: ctypes.PyDLL(None).sleep(1000)}[how]
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, hang)
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
