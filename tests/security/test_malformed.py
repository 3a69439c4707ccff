"""S1: malformed requests on every RPC of all four services: never UNKNOWN or INTERNAL, no crash, hardly any memory."""

import asyncio
import gc
import random
from collections import Counter
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from marless.rpc.client import Peer
from marless.rpc.security import Security
from tests.security.four_services import METHODS, four_services
from tests.security.malformed import HEADERS, requests

GRPCS_OWN = {
    f"/{service.full_name}/{method.name}": method
    for module in (health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
NEVER = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
WRITE_FAILED = "Internal error from Core"
LATEST_S = 0.25
"""A call that has not been refused by then may go on: it is cancelled."""
AT_ONCE = 16


async def status(channel: grpc.aio.Channel, name: str, method: MethodDescriptor, sent: list[bytes]) -> grpc.StatusCode:
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    call = getattr(channel, kind)(name)(iter(sent) if method.client_streaming else sent[0], timeout=LATEST_S)
    try:
        if method.server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        if error.details() == WRITE_FAILED:  # says this client, which was still sending when it was refused
            return grpc.StatusCode.CANCELLED
        return error.code()
    except asyncio.CancelledError:
        if not call.done():
            raise
    return await call.code()


async def attack(address: str, name: str, method: MethodDescriptor, seed: str, count: int) -> Counter[grpc.StatusCode]:
    """How `count` malformed calls of one method ended."""
    rng, answers, left = random.Random(seed), Counter(), iter(range(count))
    peer = Peer(address, Security())

    async def some() -> None:
        for _ in left:
            sent = requests(method, rng)
            code = await status(peer.channel, name, method, sent)
            answers[code] += 1
            assert code not in NEVER, f"{name} answers {code.name} to {sent!r}"

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await peer.close()
    return answers


def resident_mib() -> float:
    gc.collect()
    status_file = Path("/proc/self/status").read_text()
    return int(status_file.partition("VmRSS:")[2].split()[0]) / 1024


def test_every_transfer_has_its_header():
    assert {method.name for method in METHODS.values() if method.input_type.name == "Chunk"} == set(HEADERS)


async def attack_all(folder: Path, redis_url: str, count: int) -> None:
    async with four_services(folder, redis_url, "--reflection") as addresses:
        for name, method in METHODS.items():
            await attack(addresses[method.containing_service.name], name, method, f"warm {name}", max(20, count // 10))
        before_mib = resident_mib()
        seen: Counter[grpc.StatusCode] = Counter()
        for name, method in METHODS.items():
            seen += await attack(addresses[method.containing_service.name], name, method, name, count)
        for name, method in GRPCS_OWN.items():
            seen += await attack(addresses["CoordinatorService"], name, method, name, count)
        assert resident_mib() - before_mib < 10
        assert seen[grpc.StatusCode.INVALID_ARGUMENT] > 10 * count
        peers = [Peer(address, Security()) for address in addresses.values()]
        for peer in peers:  # all of them still serve
            check = peer.channel.unary_unary(
                "/grpc.health.v1.Health/Check", bytes, health_pb2.HealthCheckResponse.FromString
            )
            assert (await check(b"")).status
            await peer.close()


async def test_malformed_requests_are_refused_by_every_rpc(tmp_path, redis_url, no_workers):
    await attack_all(tmp_path, redis_url, 120)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_ten_thousand_malformed_requests_are_refused_by_every_rpc(tmp_path, redis_url, no_workers):
    await attack_all(tmp_path, redis_url, 10_000)
