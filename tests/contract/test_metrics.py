"""What a service lets Prometheus read: where, by whom, and that it is true."""

import asyncio
import socket
import ssl
import time
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from structlog.testing import capture_logs

from marless.core.errors import NotFoundError, SpecError
from marless.rpc import metrics
from marless.rpc.client import Peer
from marless.rpc.metrics import counter, gauge
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import (
    CoordinatorServiceServicer,
    CoordinatorServiceStub,
    add_CoordinatorServiceServicer_to_server,
)
from tests import tokens


class Servicer(CoordinatorServiceServicer):
    async def GetJob(self, request, context):  # noqa: N802
        if request.job == "none":
            raise NotFoundError("there is none")
        if request.job == "defect":
            raise ZeroDivisionError
        await asyncio.sleep(0.05 if request.job == "slow" else 0)
        return coordinator_pb2.GetJobResponse()

    async def WatchJob(self, request, context):  # noqa: N802
        while True:
            yield coordinator_pb2.JobEvent(cursor=1)
            if request.job == "short":
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(figures=tuple, security=None, at="127.0.0.1:0"):
    """A service with metrics: a stub of it, and a function that scrapes."""

    @asynccontextmanager
    async def build(address):
        yield ServedService(
            lambda server: add_CoordinatorServiceServicer_to_server(Servicer(), server), figures=figures
        )

    options = ServerOptions("127.0.0.1:0", security or Security(), metrics=at)
    with capture_logs() as logs:
        async with serving(options, build) as address:
            [where] = [line["address"] for line in logs if line["event"] == "metrics"]
            peer = Peer(address, Security(tls_ca=security.tls_ca) if security else Security())
            stub = CoordinatorServiceStub(peer.channel)
            stub.channel = peer.channel
            yield stub, Scrape(where)
            await peer.close()


class Scrape:
    """Reads the metrics at an address: samples by their name and labels."""

    def __init__(self, address):
        self.address = address.replace("0.0.0.0", "127.0.0.1")
        self.port = int(address.rpartition(":")[2])

    async def __call__(self, context=None):
        return await asyncio.to_thread(self._read, context)

    def _read(self, context):
        url = f"{'https' if context else 'http'}://{self.address}/metrics"
        with urllib.request.urlopen(url, context=context, timeout=5) as answer:
            text = answer.read().decode()
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def count(method, code):
    return f'marless_rpc_seconds_count{{code="{code}",method="CoordinatorService/{method}"}}'


async def test_rpcs_are_counted_by_method_and_code():
    async with served() as (stub, scrape):
        for job in ("a", "a", "none", "defect", "slow"):
            try:
                await stub.GetJob(coordinator_pb2.GetJobRequest(job=job))
            except grpc.aio.AioRpcError:
                assert job in ("none", "defect")
        assert [event.cursor async for event in stub.WatchJob(coordinator_pb2.WatchJobRequest(job="short"))] == [1]
        call = stub.WatchJob(coordinator_pb2.WatchJobRequest(job="long"))
        await call.read()
        call.cancel()
        deadline = time.monotonic() + 5
        while count("WatchJob", "CANCELLED") not in (said := await scrape()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        assert {name: value for name, value in said.items() if "seconds_count" in name} == {
            count("GetJob", "OK"): "3.0",
            count("GetJob", "NOT_FOUND"): "1.0",
            count("GetJob", "INTERNAL"): "1.0",
            count("WatchJob", "OK"): "1.0",
            count("WatchJob", "CANCELLED"): "1.0",
        }
        bucket = 'marless_rpc_seconds_bucket{code="OK",le="0.025",method="CoordinatorService/GetJob"}'
        assert said[bucket] == "2.0"  # the slow one is not among them


async def test_names_that_a_stranger_makes_up_are_not_kept(tmp_path):
    async with served(security=Security(tokens=tokens.made(tmp_path / "tokens"))) as (stub, scrape):
        for metadata in ((), *(tokens.client(role).metadata() for role in Role)):
            for name in ("GetJob", "Guessed"):
                call = stub.channel.unary_unary(f"/marless.rpc.v1.CoordinatorService/{name}")
                with suppress(grpc.aio.AioRpcError):
                    await call(b"", metadata=metadata)
        assert [name for name in await scrape() if "rpc_seconds_count" in name] == [count("GetJob", "OK")]


async def test_figures_are_read_on_the_loop_and_as_they_are_now():
    numbers = {"applied": 1}
    seen = []

    def figures():
        seen.append(asyncio.get_running_loop())
        return [counter("uploads", "Uploads.", numbers, by="outcome"), gauge("bytes", "Bytes.", 7)]

    async with served(figures) as (_, scrape):
        assert (await scrape())['marless_uploads_total{outcome="applied"}'] == "1.0"
        numbers |= {"applied": 5, "stale": 2}
        said = await scrape()
    assert (said['marless_uploads_total{outcome="applied"}'], said["marless_bytes"]) == ("5.0", "7.0")
    assert said['marless_uploads_total{outcome="stale"}'] == "2.0"
    assert set(seen) == {asyncio.get_running_loop()}


async def test_a_loop_that_hangs_is_a_scrape_that_fails(monkeypatch):
    monkeypatch.setattr(metrics, "SCRAPE_TIMEOUT_S", 0.1)
    async with served() as (_, scrape):
        scraping = asyncio.create_task(scrape())
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251  # the loop hangs
        with pytest.raises(urllib.error.HTTPError, match="500"):
            await scraping
        assert "process_open_fds" in await scrape()


@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        ("9100", "give host:port"),
        ("127.0.0.1:http", "give host:port"),
        ("127.0.0.1:99999", "cannot be served there"),
        ("0.0.0.0:0", "is not a loopback address: set --tls-cert, --tls-key, --tls-ca"),
    ],
)
async def test_an_address_that_cannot_be_used_is_refused_in_a_sentence(at, sentence):
    with pytest.raises(SpecError, match=sentence) as caught:
        async with served(at=at):
            pass
    assert f"--metrics {at}" in str(caught.value)


async def test_an_address_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(SpecError, match="choose another address"):
        async with served(at=f"127.0.0.1:{other.getsockname()[1]}"):
            pass


async def test_beyond_loopback_only_who_has_a_certificate_may_read(tls):
    files = Security("", tls["server.pem"], tls["server.key"], tls["ca.pem"])
    async with served(security=files, at="0.0.0.0:0") as (_, scrape):
        known = ssl.create_default_context(cafile=tls["ca.pem"])
        known.check_hostname = False
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            await scrape(context=known)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            await scrape()
        known.load_cert_chain(tls["server.pem"], tls["server.key"])
        assert "process_open_fds" in await scrape(context=known)


async def test_who_connects_and_says_nothing_keeps_nobody_waiting(tls):
    files = Security("", tls["server.pem"], tls["server.key"], tls["ca.pem"])
    known = ssl.create_default_context(cafile=tls["ca.pem"])
    known.check_hostname = False
    known.load_cert_chain(tls["server.pem"], tls["server.key"])
    async with served(security=files, at="0.0.0.0:0") as (_, scrape):
        with socket.create_connection(("127.0.0.1", scrape.port)):
            assert "process_open_fds" in await scrape(context=known)
