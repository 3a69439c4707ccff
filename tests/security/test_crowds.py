"""S2 and S3: messages that are too large or claim to be, many at once, and connections that are left hanging."""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from marless.core.errors import OverloadedError
from marless.rpc import security, server
from marless.rpc.admission import MAX_CALLS
from marless.rpc.client import Peer
from marless.rpc.health import is_serving
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import MAX_REQUEST_BYTES
from marless.rpc.v1 import actor_pool_pb2, common_pb2
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from tests import tokens
from tests.security.four_services import METHODS, four_services
from tests.security.test_roles import everything, status

MIB = 2**20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ROLLOUT = "/marless.rpc.v1.ActorPoolService/Rollout"
STATUS_S = 20.0
"""gRPC's core refuses a message that is too large after up to a second, also on an idle machine, and pings before."""


@dataclass(frozen=True)
class Running:
    """A service as a process of its own, whose memory can be measured."""

    address: str
    pid: int

    def peak_mib(self) -> float:
        """The most that it ever held."""
        return int(Path(f"/proc/{self.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024

    def connections(self) -> int:
        """Sockets that it has open."""
        found = 0
        for path in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                found += path.readlink().as_posix().startswith("socket:")
        return found


@asynccontextmanager
async def actor_pool() -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "marless.services.actor_pool",
        "--listen",
        "127.0.0.1:0",
        "--exit-with-stdin",
        "--param-store",
        "unix:/nowhere",
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        while True:
            line = await process.stderr.readline()
            assert line, "the service ended before it served"
            said = json.loads(line) if line.startswith(b"{") else {}
            if said.get("event") == "serving":
                break
        yield Running(said["address"], process.pid)
        assert process.returncode is None
    finally:
        process.stdin.close()
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


def large_channel(address: str) -> grpc.aio.Channel:
    """Of a client that keeps to no limit."""
    return grpc.aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])


async def code_of(call) -> grpc.StatusCode:
    with suppress(grpc.aio.AioRpcError):
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    return await call.code()


async def test_a_message_that_is_too_large_is_refused_by_every_rpc(tmp_path, redis_url, no_workers):
    huge = b"\0" * (MAX_REQUEST_BYTES + 1)
    async with four_services(tmp_path, redis_url) as addresses:
        channels = {service: large_channel(address) for service, address in addresses.items()}
        for name, method in METHODS.items():
            kind = (
                f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
            )
            sent = iter([huge]) if method.client_streaming else huge
            call = getattr(channels[method.containing_service.name], kind)(name)(sent, timeout=10.0)
            refused = {grpc.StatusCode.RESOURCE_EXHAUSTED}
            if name.endswith("/Host"):  # refused without being read: the launcher of these pools has no hosts
                refused.add(grpc.StatusCode.INVALID_ARGUMENT)
            assert await code_of(call) in refused, name
        for channel in channels.values():
            await channel.close()


def literal(name: bytes, value: bytes) -> bytes:
    """A header field as HPACK writes it without a table."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """One HTTP/2 frame."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def calling(*, last: bool) -> bytes:
    """A call of Rollout without a message, yet or for good."""
    headers = {
        b":method": b"POST", b":scheme": b"http", b":path": ROLLOUT.encode(), b":authority": b"x",
        b"te": b"trailers", b"content-type": b"application/grpc",
    }  # fmt: skip
    block = b"".join(literal(name, value) for name, value in headers.items())
    return PREFACE + frame(4, 0, 0, b"") + frame(1, 4 | int(last), 1, block)


def claiming(length: int, body: bytes, *, last: bool) -> bytes:
    """A call of Rollout whose message claims so many bytes."""
    return calling(last=False) + frame(0, int(last), 1, b"\0" + length.to_bytes(4, "big") + body)


async def answered(address: str, sent: bytes) -> bytes:
    """All that a raw connection hears, up to the status of its call or its own end."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    heard = b""
    writer.write(sent)
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(STATUS_S):
            while b"grpc-status" not in heard and (more := await reader.read(65_536)):
                heard += more
    writer.close()
    return heard


@pytest.mark.alone
async def test_claims_crowds_and_connections_that_hang_cost_a_service_little():
    """At the size for every day; see below for the full one."""
    async with actor_pool() as running:
        await claims_of_four_gib(running)
        await forty_of_the_largest(running)
        await hanging_connections(running, 150, kinds=(b"", PREFACE[:9]), p99_s=1.0, gone_s=15.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_calls_that_never_send_their_request_do_not_keep_others_out():
    async with actor_pool() as running:
        await calls_without_a_request(running)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_thousand_connections_that_hang_are_gone_in_thirty_seconds():
    async with actor_pool() as running:
        begun = PREFACE + frame(4, 0, 0, b"") + frame(4, 1, 0, b"")
        kinds = (b"", PREFACE[:9], PREFACE, begun, begun + b"\0\0")
        await hanging_connections(running, 1000, kinds=kinds, p99_s=0.05, gone_s=30.0)


async def calls_without_a_request(running: Running) -> None:
    """More than may go on at a time: each waits for a request that does not come, or ends without one."""
    ended = await answered(running.address, calling(last=True))
    assert b"grpc-status\x013" in ended  # INVALID_ARGUMENT
    open_ones = [calling(last=False)] * (MAX_CALLS + 10)
    host, _, port = running.address.rpartition(":")
    connections = [socket.create_connection((host, int(port))) for _ in open_ones]
    for connection, sent in zip(connections, open_ones, strict=True):
        connection.sendall(sent)
        connection.setblocking(False)
    peer, started_s = Peer(running.address, Security()), time.monotonic()
    stub = ActorPoolServiceStub(peer.channel)

    async def full() -> bool:
        for connection in connections:
            with suppress(OSError):
                answer_pings(connection)
        try:
            await peer.call(stub.ListWorkers, common_pb2.ListWorkersRequest())
        except OverloadedError:
            return True
        return False

    while not await full():
        assert time.monotonic() - started_s < 20.0, "the calls that were left open keep nobody out"
    while await full():
        assert time.monotonic() - started_s < 30.0, "others are still kept out"
        await asyncio.sleep(0.25)
    for connection in connections:
        connection.close()
    await peer.close()


async def claims_of_four_gib(running: Running) -> None:
    before_mib = running.peak_mib()
    claim = claiming(2**32 - 1, b"x" * 100, last=False)
    for heard in await asyncio.gather(*(answered(running.address, claim) for _ in range(20))):
        assert b"grpc-status\x018" in heard  # RESOURCE_EXHAUSTED
    assert running.peak_mib() - before_mib < 16


async def forty_of_the_largest(running: Running) -> None:
    before_mib = running.peak_mib()
    largest = actor_pool_pb2.RolloutRequest(job="x" * (MAX_REQUEST_BYTES - 100)).SerializeToString()
    channels = [large_channel(running.address) for _ in range(8)]
    calls = [channel.unary_unary(ROLLOUT)(largest, timeout=60.0) for channel in channels for _ in range(5)]
    assert set(await asyncio.gather(*map(code_of, calls))) == {grpc.StatusCode.INVALID_ARGUMENT}
    assert running.peak_mib() - before_mib < 40 * MAX_REQUEST_BYTES / MIB + 64
    for channel in channels:
        await channel.close()


async def hanging_connections(
    running: Running, count: int, *, kinds: tuple[bytes, ...], p99_s: float, gone_s: float
) -> None:
    peer = Peer(running.address, Security())
    stub = ActorPoolServiceStub(peer.channel)
    await peer.call(stub.ListWorkers, common_pb2.ListWorkersRequest())
    before, before_mib = running.connections(), running.peak_mib()
    host, _, port = running.address.rpartition(":")
    hanging = []
    for number in range(count):
        hanging.append(socket.create_connection((host, int(port))))
        hanging[-1].sendall(kinds[number % len(kinds)])
        hanging[-1].setblocking(False)
    started_s, took_s = time.monotonic(), []
    for _ in range(200):
        called_s = time.perf_counter()
        await peer.call(stub.ListWorkers, common_pb2.ListWorkersRequest())
        took_s.append(time.perf_counter() - called_s)
    assert sorted(took_s)[197] < p99_s
    assert running.peak_mib() - before_mib < 64
    while running.connections() > before:
        assert time.monotonic() - started_s < gone_s, f"{running.connections() - before} connections are still there"
        for each in hanging:
            with suppress(OSError):
                answer_pings(each)
        await asyncio.sleep(0.5)
    for each in hanging:
        each.close()
    await peer.close()


def answer_pings(connection: socket.socket) -> None:
    """So that it is not taken for dead."""
    heard = connection.recv(65_536)
    for after in heard.split(b"\0\0\x08\x06\0\0\0\0\0")[1:]:
        connection.send(frame(6, 1, 0, after[:8]))


def test_the_limit_leaves_room_for_what_services_say():
    assert MAX_REQUEST_BYTES >= 2 * server.chunks.PIECE_BYTES


async def test_strangers_keep_nobody_out_who_has_a_token(tmp_path, monkeypatch):
    """Watching health for ever, asking for it without ever sending the request, and calling what they may not."""
    monkeypatch.setattr(server, "MAX_OPEN_RPCS", 40)
    monkeypatch.setattr(security, "MAX_STRANGERS", 8)
    async with everything("127.0.0.1:0", Security(tokens=tokens.made(tmp_path / "tokens"))) as address:
        channel, peer = grpc.aio.insecure_channel(address), Peer(address, tokens.client(Role.OPERATOR))
        health = HealthStub(channel)
        watching = [asyncio.create_task(code_of(health.Watch(HealthCheckRequest()))) for _ in range(50)]
        paths = ("/grpc.health.v1.Health/Check", ROLLOUT) * 50
        silent = [channel.stream_unary(path)() for path in paths]
        await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)  # there is no room for more of these
        for _ in range(20):
            listed = await status(peer.channel, "/marless.rpc.v1.ActorPoolService/ListWorkers", peer.metadata)
            assert listed == grpc.StatusCode.UNIMPLEMENTED  # let through
            assert await is_serving(peer)
        assert {task.result() for task in watching if task.done()} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        for call in (*watching, *silent):
            call.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await channel.close()
        await peer.close()
