"""Connections end after some time: unnoticed by whoever calls, and for those who only hold them, too."""

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from marless.rpc import server
from marless.rpc.client import Peer
from marless.rpc.security import Security

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, ACK = 4, 6, 1


@asynccontextmanager
async def forgetful(address):
    """A server without a service, whose connections last a second."""
    connections = ("grpc.max_connection_age_ms", "grpc.max_connection_idle_ms")
    options = tuple((name, 1000 if name in connections else value) for name, value in server._OPTIONS)

    @asynccontextmanager
    async def build(_address):
        yield server.ServedService(lambda _server: None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "_OPTIONS", options)
        async with server.serving(server.ServerOptions(address, Security()), build) as bound:
            yield bound


async def outlive_connections(address):
    """Call, let the connection end, call again; beside an open stream and a client that never stops calling."""
    async with forgetful(address) as bound:
        peers = [Peer(bound, Security()) for _ in range(3)]
        resting, watching, busy = (HealthStub(peer.channel) for peer in peers)
        statuses = peers[1].stream(watching.Watch, HealthCheckRequest())
        await anext(statuses)
        nothing_new = asyncio.ensure_future(anext(statuses))
        for _ in range(2):
            await peers[0].call(resting.Check, HealthCheckRequest())
            while peers[0].channel.get_state() is grpc.ChannelConnectivity.READY:
                await peers[2].call(busy.Check, HealthCheckRequest())
        assert not nothing_new.done()
        nothing_new.cancel()
        await asyncio.gather(nothing_new, return_exceptions=True)
        for peer in peers:
            await peer.close()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "unix:{}/health.sock"])
def test_a_connection_that_ends_breaks_no_call_and_no_stream_and_tells_nobody(tmp_path, address):
    command = [sys.executable, __file__, address.format(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30.0, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "goaway" not in ended.stderr.lower()


async def test_a_client_that_answers_pings_and_never_calls_is_let_go():
    async with forgetful("127.0.0.1:0") as bound, asyncio.timeout(10.0):
        host, _, port = bound.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + bytes([0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            while True:
                head = await reader.readexactly(9)
                body = await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == PING and not head[4] & ACK:
                    writer.write(head[:4] + bytes([ACK]) + head[5:] + body)
        writer.close()


if __name__ == "__main__":
    asyncio.run(outlive_connections(sys.argv[1]))
