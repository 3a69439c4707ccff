"""Where services listen and what others dial: two settings, and the certificates that fit."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.core.errors import InternalError, SpecError, UnreachableError
from marless.rpc import server as servers
from marless.rpc.addresses import advertised, is_everywhere
from marless.rpc.client import Peer
from marless.rpc.security import Security, check_served, check_shown
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.common_pb2 import ListWorkersRequest
from tests import tokens

SERVING = health_pb2.HealthCheckResponse.SERVING


@asynccontextmanager
async def built(_address):
    yield ServedService(lambda server: None)


def security(tls, name="server", **others) -> Security:
    return Security(tls_cert=tls[f"{name}.pem"], tls_key=tls[f"{name}.key"], tls_ca=tls["ca.pem"], **others)


async def health(address: str, client: Security) -> int:
    peer = Peer(address, client, "learner_pool")
    try:
        stub = health_pb2_grpc.HealthStub(peer.channel)
        return (await peer.call(stub.Check, health_pb2.HealthCheckRequest(), timeout_s=5.0)).status
    finally:
        await peer.close()


@pytest.mark.parametrize(
    ("bound", "advertise", "dialled"),
    [
        ("127.0.0.1:7070", "", "127.0.0.1:7070"),
        ("unix:/run/pool.sock", "", "unix:/run/pool.sock"),
        ("0.0.0.0:7070", "", f"{socket.gethostname()}:7070"),
        ("[::]:7070", "", f"{socket.gethostname()}:7070"),
        ("0.0.0.0:7070", "pool", "pool:7070"),
        ("0.0.0.0:7070", "pool.example.org:443", "pool.example.org:443"),
        ("[::]:7070", "[2001:db8::1]", "[2001:db8::1]:7070"),
        ("[::]:7070", "[2001:db8::1]:80", "[2001:db8::1]:80"),
        ("unix:/run/pool.sock", "pool:7070", "pool:7070"),
        ("0.0.0.0:7070", "unix:/run/pool.sock", "unix:/run/pool.sock"),
    ],
)
def test_what_others_dial_is_what_the_operator_says_or_where_it_listens(bound, advertise, dialled):
    assert advertised(bound, advertise) == dialled


@pytest.mark.parametrize(
    "advertise", ["0.0.0.0", "[::]:7070", "2001:db8::1", ":7070", "pool:0", "pool:70000", "pool:x"]
)
def test_what_nobody_can_dial_is_refused_with_an_example(advertise):
    with pytest.raises(SpecError, match=rf"--advertise .*{advertise[-4:].strip('[]')}.*: give the host and port"):
        advertised("0.0.0.0:7070", advertise)


def test_a_host_alone_needs_a_port_to_listen_on():
    with pytest.raises(SpecError, match="--advertise pool: give the host and port"):
        advertised("unix:/run/pool.sock", "pool")


@pytest.mark.parametrize(
    ("address", "everywhere"),
    [
        ("0.0.0.0:1", True),
        ("[::]:1", True),
        (":1", True),
        ("127.0.0.1:1", False),
        ("pool:1", False),
        ("unix:/x", False),
    ],
)
def test_all_interfaces_are_recognised(address, everywhere):
    assert is_everywhere(address) is everywhere


async def test_a_service_is_built_with_what_others_dial_and_it_can_be_dialled(tls, tmp_path):
    told = []

    @asynccontextmanager
    async def build(address):
        told.append(address)
        yield ServedService(lambda server: None)

    ours = security(tls, tokens=tokens.made(tmp_path / "tokens"), mutual=True)
    async with serving(ServerOptions("0.0.0.0:0", ours, advertise="127.0.0.1"), build) as address:
        assert told == [address]
        assert address.startswith("127.0.0.1:")
        assert await health(address, security(tls, "worker")) == SERVING


async def test_ipv6_is_listened_on_and_dialled():
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    async with serving(ServerOptions("[::1]:0", Security()), built) as address:
        assert address.startswith("[::1]:")
        assert await health(address, Security()) == SERVING


@pytest.mark.parametrize(
    ("name", "advertise", "why"),
    [
        ("expired", "", r"the TLS certificate .*expired.pem has expired; make a new one"),
        ("server", "pool", r"server.pem is not for pool, where --advertise .*; set --advertise to a host"),
    ],
)
async def test_a_service_does_not_start_with_a_certificate_that_callers_would_refuse(tls, name, advertise, why):
    with pytest.raises(SpecError, match=why):
        async with serving(ServerOptions("127.0.0.1:0", security(tls, name), advertise=advertise), built):
            pass


def test_a_key_of_another_certificate_is_one_sentence(tls):
    for check in (check_shown, lambda cert, key: check_served(cert, key, "")):
        with pytest.raises(SpecError, match=r"server.pem and the key .*worker.key cannot be used: key values mismatch"):
            check(tls["server.pem"], tls["worker.key"])


async def test_a_service_with_a_key_of_another_certificate_says_so(tls, tmp_path):
    mixed = replace(security(tls), tls_key=tls["worker.key"], tokens=tokens.made(tmp_path / "tokens"))
    with pytest.raises(SpecError, match=r"server.pem and the key .*worker.key cannot be used: key values mismatch"):
        async with serving(ServerOptions("127.0.0.1:0", mixed), built):
            pass


async def test_a_call_to_another_service_says_so():
    async with serving(ServerOptions("127.0.0.1:0", Security()), built) as address:
        peer = Peer(address, Security(), "actor_pool")
        with pytest.raises(InternalError, match="actor_pool: what answers has no such method: it is another service"):
            await peer.call(ActorPoolServiceStub(peer.channel).ListWorkers, ListWorkersRequest())
        await peer.close()


def test_a_client_with_an_expired_certificate_says_so_itself(tls):
    with pytest.raises(SpecError, match=r"expired.pem has expired; make a new one"):
        Peer("127.0.0.1:7070", security(tls, "expired"))


@pytest.mark.parametrize(
    ("name", "host", "why"),
    [
        ("expired", "127.0.0.1", "learner_pool: its TLS certificate has expired; give it a new one"),
        ("server", "localhost", "learner_pool: its TLS certificate is for another host; dial it by a name"),
        ("forged", "127.0.0.1", "learner_pool: its TLS certificate is not of the authority that is trusted here"),
    ],
)
async def test_a_caller_says_what_is_wrong_with_a_servers_certificate(monkeypatch, tls, name, host, why):
    monkeypatch.setattr(servers, "check_served", lambda *_: 0.0)  # it had not expired when the service started
    async with serving(ServerOptions("127.0.0.1:0", security(tls, name)), built) as address:
        with pytest.raises(UnreachableError, match=why):
            await health(address.replace("127.0.0.1", host), security(tls, "worker"))


async def test_a_caller_with_tls_says_that_a_server_has_none(tls):
    async with serving(ServerOptions("127.0.0.1:0", Security()), built) as address:
        with pytest.raises(UnreachableError, match="learner_pool: it serves without TLS; unset --tls-ca"):
            await health(address, security(tls, "worker"))


async def test_a_service_warns_before_its_certificate_ends_and_afterwards(monkeypatch, tls, capsys):
    servers.configure_logging()
    for left_s, event in ((3600.0, "certificate.expires"), (-3600.0, "certificate.expired")):
        monkeypatch.setattr(servers, "check_served", lambda *_, left_s=left_s: servers.time.time() + left_s)
        async with serving(ServerOptions("127.0.0.1:0", security(tls)), built):
            await asyncio.sleep(0)  # lets the task that warns run
        said = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
        assert [(line["event"], line["hours"]) for line in said] == [(event, round(left_s / 3600))]


async def test_a_service_does_not_warn_of_a_certificate_that_lasts(monkeypatch, tls, capsys):
    servers.configure_logging()
    monkeypatch.setattr(servers, "check_served", lambda *_: servers.time.time() + 2 * servers.WARNING_S)
    async with serving(ServerOptions("127.0.0.1:0", replace(security(tls), mutual=True)), built):
        await asyncio.sleep(0)
    assert "certificate" not in capsys.readouterr().err
