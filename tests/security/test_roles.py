"""S4: every RPC of every service, against every wrong role, no token, a wrong one, no certificate and wrong ones."""

import importlib
import pkgutil
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from structlog.testing import capture_logs

from marless.core.errors import FencedError, PermissionDeniedError, SpecError
from marless.core.group import LaneRecord
from marless.rpc import carries, roles, v1
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.roles import ALLOWED, Role
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.services.actor_pool import __main__ as actor_pool
from marless.services.coordinator import config as coordinator
from marless.services.learner_pool import config as learner_pool
from marless.services.param_store import __main__ as param_store
from marless.services.param_store.__main__ import build
from tests import tokens

NAMES = [name for _, name, _ in pkgutil.iter_modules(v1.__path__) if name.endswith("_pb2")]
MODULES = {name: importlib.import_module(f"marless.rpc.v1.{name}") for name in NAMES}
SERVICES = {
    service: name for name, module in MODULES.items() for service in module.DESCRIPTOR.services_by_name.values()
}
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
EVERY = METHODS | {f"/{REFLECTION.full_name}/{method.name}": method for method in REFLECTION.methods}
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
WRONG = Security("a guess of the right length")


def test_every_rpc_of_every_service_has_its_line_and_no_line_is_of_an_rpc_that_has_gone():
    assert len(SERVICES) == 4
    assert set(ALLOWED) == set(EVERY)
    assert all(ALLOWED.values())


def test_users_workers_and_services_share_no_rpc_that_changes_anything():
    """What each role may do, in words; a change here is a change of docs/security.md."""
    may = {role: {name.rpartition(".")[2] for name, allowed in ALLOWED.items() if role in allowed} for role in Role}
    users = {name for name in may[Role.CLIENT] if name.startswith("CoordinatorService/")}
    assert may[Role.CLIENT] == users == {name.rpartition(".")[2] for name in METHODS if "Coordinator" in name}
    assert may[Role.OPERATOR] - users == {
        *("ActorPoolService/Scale", "ActorPoolService/ListWorkers", "LearnerPoolService/ListWorkers"),
        *("ActorPoolService/ListMachines", "LearnerPoolService/ListMachines"),
        *("ParamStoreService/List", "ParamStoreService/Watch", "ParamStoreService/Pin"),
        "ServerReflection/ServerReflectionInfo",
    }
    assert may[Role.ACTOR] == {
        *(f"ActorPoolService/{name}" for name in ("Work", "Relay", "Host")),
        *("LearnerPoolService/Upload", "LearnerPoolService/UploadMany"),
        *("ParamStoreService/Get", "ParamStoreService/Publish"),
    }
    assert may[Role.LEARNER] == {
        *(f"LearnerPoolService/{name}" for name in ("Work", "Host", "ReadRef", "WriteRef")),
        *(f"ParamStoreService/{name}" for name in ("Get", "List", "Publish")),
    }
    assert not may[Role.SERVICE] & (users | {"ActorPoolService/Work", "LearnerPoolService/Work"})


@pytest.mark.parametrize("role", Role)
def test_what_is_not_in_the_table_is_refused(role):
    for method in ("/marless.rpc.v1.CoordinatorService/NewToday", "/other.Service/Get", "", "/"):
        with pytest.raises(PermissionDeniedError, match="nobody may"):
            roles.check(role, method)


@asynccontextmanager
async def everything(listen: str, security: Security):
    """All four services behind the house's own server; none of their methods does anything."""

    def register(server: grpc.aio.Server) -> None:
        for service, name in SERVICES.items():
            module = importlib.import_module(f"marless.rpc.v1.{name}_grpc")
            servicer = getattr(module, f"{service.name}Servicer")()
            getattr(module, f"add_{service.name}Servicer_to_server")(servicer, server)

    @asynccontextmanager
    async def build(_address):
        yield ServedService(register, name="CoordinatorService")

    with capture_logs():  # of methods that are let through
        async with serving(ServerOptions(listen, security, reflection=True), build) as address:
            yield address


async def status(channel: grpc.aio.Channel, method: str, metadata) -> grpc.StatusCode:
    """How a call of any kind ends that sends one empty message."""
    found = EVERY[method]
    kind = f"{'stream' if found.client_streaming else 'unary'}_{'stream' if found.server_streaming else 'unary'}"
    request = iter([b""]) if found.client_streaming else b""
    call = getattr(channel, kind)(method)(request, metadata=metadata, timeout=10.0)
    if method.endswith("ServerReflectionInfo"):
        with suppress(grpc.aio.AioRpcError):
            await call.read()
        call.cancel()
    return await call.code()


async def all_refused(address: str, security: Security, code: grpc.StatusCode) -> bool:
    peer = Peer(address, security)
    try:
        return {await status(peer.channel, method, peer.metadata) for method in EVERY} == {code}
    finally:
        await peer.close()


async def test_every_wrong_role_is_refused_at_every_rpc_and_every_right_one_let_through(tmp_path):
    async with everything("127.0.0.1:0", Security(tokens=tokens.made(tmp_path / "tokens"))) as address:
        for role in Role:
            peer = Peer(address, tokens.client(role))
            for method in EVERY:
                answer = await status(peer.channel, method, peer.metadata)
                if role in ALLOWED[method]:
                    assert answer not in REFUSED, (role, method)
                else:
                    assert answer == grpc.StatusCode.PERMISSION_DENIED, (role, method)
            await peer.close()
        for nobody in (Security(), WRONG, Security(token="x"), tokens.client(Role.OPERATOR, 2)):
            assert await all_refused(address, nobody, grpc.StatusCode.UNAUTHENTICATED)


@pytest.mark.parametrize("header", ["canary-of-the-operator-1", "Basic canary-of-the-operator-1", "Bearer", "Bearer "])
async def test_a_token_counts_only_as_a_bearer_token(tmp_path, header):
    async with everything("127.0.0.1:0", Security(tokens=tokens.made(tmp_path / "tokens"))) as address:
        peer = Peer(address, Security())
        for method in EVERY:
            assert await status(peer.channel, method, (("authorization", header),)) == REFUSED[0]
        await peer.close()


async def test_only_with_a_certificate_of_the_authority_is_anything_heard(tmp_path, tls, monkeypatch):
    """Mutual TLS: without a right certificate not even health is told; with one, the token still decides."""
    monkeypatch.setattr("marless.rpc.security.check_shown", lambda *_: None)  # strangers do not check their own
    held = tokens.made(tmp_path / "tokens")
    server = Security("", tls["server.pem"], tls["server.key"], tls["ca.pem"], mutual=True, tokens=held)
    right = replace(
        tokens.client(Role.OPERATOR, tls_ca=tls["ca.pem"]), tls_cert=tls["worker.pem"], tls_key=tls["worker.key"]
    )
    strangers = {
        "no certificate": replace(right, tls_cert="", tls_key=""),
        "of another authority": replace(right, tls_cert=tls["forged.pem"], tls_key=tls["forged.key"]),
        "expired": replace(right, tls_cert=tls["expired.pem"], tls_key=tls["expired.key"]),
        "who trusts another authority": replace(right, tls_ca=tls["stranger.pem"]),
        "plaintext": Security(right.token),
    }
    async with everything("127.0.0.1:0", server) as address:
        for why, stranger in strangers.items():
            assert await all_refused(address, stranger, grpc.StatusCode.UNAVAILABLE), why
            assert await health(address, stranger) == grpc.StatusCode.UNAVAILABLE, why
        assert await health(address, right) == grpc.StatusCode.OK
        for token in ("", WRONG.token):
            assert await all_refused(address, replace(right, token=token), grpc.StatusCode.UNAUTHENTICATED)
        peer = Peer(address, right)
        answers = {method: await status(peer.channel, method, peer.metadata) for method in EVERY}
        assert {method for method, answer in answers.items() if answer not in REFUSED} == {
            method for method, allowed in ALLOWED.items() if Role.OPERATOR in allowed
        }
        await peer.close()


def test_services_that_no_user_speaks_to_ask_for_certificates(tls):
    told = ["--tls-cert", tls["server.pem"], "--tls-key", tls["server.key"]]
    store = ["--param-store", "unix:/nowhere"]
    for config, peers in ((actor_pool, store), (learner_pool, store), (param_store, [])):
        security = config.parse([*told, *peers]).server.security
        with pytest.raises(SpecError, match="callers must present a certificate; set --tls-ca"):
            security.server_credentials("127.0.0.1:0")
        assert config.parse([*told, *peers, "--tls-ca", tls["ca.pem"]]).server.security.mutual
    told += [*store, "--actor-pool", "unix:/nowhere", "--learner-pool", "unix:/nowhere"]
    assert not coordinator.parse([*told, "--tls-ca", tls["ca.pem"]]).server.security.mutual
    asked = coordinator.parse([*told, "--tls-client-ca", tls["stranger.pem"]]).server.security
    assert (asked.mutual, asked.tls_client_ca) == (True, tls["stranger.pem"])


async def health(address: str, security: Security) -> grpc.StatusCode:
    peer = Peer(address, security)
    call = health_pb2_grpc.HealthStub(peer.channel).Check(health_pb2.HealthCheckRequest(), timeout=10.0)
    try:
        return await call.code()
    finally:
        await peer.close()


async def test_an_actor_reads_what_it_acts_with_and_no_more(store_config, tmp_path, job):
    """Optimizer moments, critics and reports are the learners'; third parties' code runs in actors."""
    config = replace(
        store_config, server=ServerOptions("127.0.0.1:0", Security(tokens=tokens.made(tmp_path / "tokens")))
    )
    async with serving(config.server, lambda address: build(config, address)) as address:
        peers = {role: Peer(address, tokens.client(role)) for role in Role}
        stores = {role: ParamStore(peer, patience_s=0.0) for role, peer in peers.items()}
        epoch = await stores[Role.SERVICE].acquire_epoch(job, "open")
        write = PolicyWrite("a", 0, "one", {"acting": b"a", "learning": b"b", "outcome": b"{}"})
        await stores[Role.LEARNER].publish(job, epoch, 0, [write])
        assert bytes((await stores[Role.ACTOR].get(job, {"a": 1}, ("acting",)))["a"].blobs["acting"]) == b"a"
        for parts in (("learning",), ("outcome",), ("acting", "learning")):
            assert set((await stores[Role.LEARNER].get(job, {"a": 1}, parts))["a"].blobs) == set(parts)
            with pytest.raises(PermissionDeniedError, match="reads the part 'acting' of a policy"):
                await stores[Role.ACTOR].get(job, {"a": 1}, parts)
        lane = LaneRecord(lane=0, version=0, digest="")
        carried = carries.after(lane, b"c")
        await carries.publish(stores[Role.ACTOR], job, epoch, 0, {carried: b"c"})
        assert await carries.fetch(stores[Role.ACTOR], job, carried) == b"c"
        for policy, parts in (("a", ("acting",)), ("a", ("carry",)), ("lane/0", ("carry", "acting")), ("lane/0", ())):
            with pytest.raises(PermissionDeniedError, match="publishes the carries of lanes, and no policy"):
                write = PolicyWrite(policy, 1, "mine", dict.fromkeys(parts, b"x"))
                await stores[Role.ACTOR].publish(job, epoch, 0, [write])
        with pytest.raises(FencedError, match=rf"epoch {epoch + 1} .* has not begun"):
            await carries.publish(stores[Role.ACTOR], job, epoch + 1, 1, {carries.after(carried, b"d"): b"d"})
        assert (await stores[Role.SERVICE].list(job)).epoch == epoch
        for peer in peers.values():
            await peer.close()
