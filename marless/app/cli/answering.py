"""Whether a service that runs also answers: its health, asked again and again, and the socket at which it is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.rpc.client import Peer
from marless.rpc.security import Security

SERVING = health_pb2.HealthCheckResponse.SERVING
RECONNECT_S = 0.05
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
"""Every other code is an answer, also a refusal."""


@dataclass(frozen=True)
class Endpoint:
    """Where a service listens, and how its health is asked."""

    listen: str
    address: str
    """The address to dial."""
    security: Security

    @property
    def socket(self) -> Path | None:
        """The file of its unix socket; None if it listens on a port."""
        return Path(self.listen.removeprefix("unix:")) if self.listen.startswith("unix:") else None


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a service may be silent before it is replaced."""

    question_s: float = 5.0
    """Seconds that one question waits for its answer, and the time between two questions."""
    silent_s: float = 30.0
    """Seconds of silence, less those in which the service waited for a CPU."""
    first_s: float = 600.0
    """Seconds from the start until the first answer: a Redis may have gigabytes to read."""


async def statuses(address: str, security: Security) -> AsyncGenerator[int, None]:
    """Yield a service's health statuses, from its first answer on; reconnects when the service is restarted."""
    while True:
        peer = Peer(address, security)
        try:
            watch = health_pb2_grpc.HealthStub(peer.channel).Watch
            async for answer in watch(health_pb2.HealthCheckRequest(), metadata=peer.metadata, wait_for_ready=True):
                yield answer.status
        except grpc.aio.AioRpcError:
            pass  # it died; its successor will answer
        finally:
            await peer.close()
        await asyncio.sleep(RECONNECT_S)


async def no_answer(endpoint: Endpoint, pid: int, patience: Patience) -> str:
    """Wait until a running service, process `pid`, cannot be reached or has been silent too long; returns what it did.

    A service that the machine starves is not silent: what counts is the time in which it could have answered. Time in
    which the caller itself did not run does not count either.
    """
    silent_s = 0.0
    while True:
        await asyncio.sleep(patience.question_s)
        if endpoint.socket and not endpoint.socket.exists():
            return f"had lost its socket, {endpoint.socket}, which something removed"
        began_s, starved = time.monotonic(), starved_s(pid)
        if await _answers(endpoint, patience.question_s):
            silent_s = 0.0
            continue
        asked_s = min(time.monotonic() - began_s, patience.question_s)
        # Between two questions nobody would notice an answer, so that this time counts like that of the question.
        silent_s += 2 * max(asked_s - _more(starved, starved_s(pid)), 0.0)
        if silent_s >= patience.silent_s:
            return f"did not answer for {silent_s:.0f} s"


async def _answers(endpoint: Endpoint, limit_s: float) -> bool:
    peer = Peer(endpoint.address, endpoint.security)
    check = health_pb2_grpc.HealthStub(peer.channel).Check
    request = health_pb2.HealthCheckRequest()
    try:
        # A question waits for a connection, too: a failure at once would take no time, and so count as no silence.
        await check(request, timeout=limit_s, metadata=peer.metadata, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        return error.code() not in _NO_ANSWER
    finally:
        await peer.close()
    return True


def starved_s(pid: int) -> dict[str, float]:
    """Seconds that each thread of a process has waited for a CPU so far; empty where Linux does not say."""
    waited = {}
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            # The second number is the time on a run queue, in nanoseconds.
            waited[thread.parent.name] = int(thread.read_text("ascii").split()[1]) / 1e9
    return waited


def _more(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Seconds by which the thread that waited longest has waited meanwhile."""
    return max((waited - before.get(thread, waited) for thread, waited in after.items()), default=0.0)
