"""Where services listen and whom channels dial: proxies of the environment, and files in the way of a socket."""

import asyncio
import os
import socket
import stat
from contextlib import asynccontextmanager

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.core.errors import SpecError
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving


@asynccontextmanager
async def served(listen: str):
    @asynccontextmanager
    async def build(_address):
        yield ServedService(lambda server: None)

    async with serving(ServerOptions(listen, Security()), build) as address:
        yield address


async def health(address: str) -> int:
    peer = Peer(address, Security())
    try:
        stub = health_pb2_grpc.HealthStub(peer.channel)
        return (await peer.call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=3.0)).status
    finally:
        await peer.close()


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy", "grpc_proxy"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_proxy_never_sees_what_stays_on_this_machine(monkeypatch, variable, host):
    met = []

    async def proxy(reader, writer):
        met.append(await reader.read(100))
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        async with served(f"{host}:0") as address:
            assert await health(address) == health_pb2.HealthCheckResponse.SERVING
    assert met == []


async def test_a_proxy_is_still_used_beyond_this_machine(monkeypatch, tls):
    met = asyncio.Event()

    async def proxy(reader, writer):
        met.set()
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
        peer = Peer("192.0.2.1:7070", Security(tls_ca=tls["ca.pem"]))
        asking = asyncio.ensure_future(
            health_pb2_grpc.HealthStub(peer.channel).Check(health_pb2.HealthCheckRequest(), timeout=3.0)
        )
        async with asyncio.timeout(3.0):
            await met.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await peer.close()


@pytest.mark.parametrize("what", ["file", "directory", "link"])
async def test_what_is_no_socket_is_not_deleted_to_listen_there(tmp_path, what):
    place, precious = tmp_path / "place", tmp_path / "precious"
    precious.write_text("years of work")
    match what:
        case "file":
            place.write_text("years of work")
        case "directory":
            place.mkdir()
        case "link":
            place.symlink_to(precious)
    with pytest.raises(SpecError, match=rf"cannot listen on unix:{place}: a file that is not a socket exists there"):
        async with served(f"unix:{place}"):
            pass
    assert precious.read_text() == "years of work"
    assert (place.is_dir(), place.is_symlink()) == (what == "directory", what == "link")
    assert place.is_dir() or place.read_text() == "years of work"


async def test_a_socket_in_use_is_not_taken_from_its_service(tmp_path):
    async with served(f"unix:{tmp_path}/place.sock") as address:
        with pytest.raises(SpecError, match="it is in use"):
            async with served(address):
                pass
        assert await health(address) == health_pb2.HealthCheckResponse.SERVING


async def test_a_socket_that_a_killed_service_left_is_replaced(tmp_path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "place.sock"))
        left.listen()
    async with served(f"unix:{tmp_path}/place.sock") as address:
        assert await health(address) == health_pb2.HealthCheckResponse.SERVING


async def test_a_socket_that_asks_for_no_token_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        async with served(f"unix:{tmp_path}/place.sock"):
            assert stat.S_IMODE((tmp_path / "place.sock").stat().st_mode) & 0o077 == 0
    finally:
        assert os.umask(before) == 0


async def test_a_directory_that_is_not_ours_is_one_sentence(tmp_path):
    with pytest.raises(SpecError, match="cannot listen on"):
        async with served(f"unix:{tmp_path}/nowhere/place.sock"):
            pass
