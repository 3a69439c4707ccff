"""Caches of a param_store: real stores, real caches, real Redis; what a cache serves is what its upstream has."""

import asyncio
import hashlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from marless.core.errors import (
    CorruptError,
    MarlessError,
    NotFoundError,
    PermissionDeniedError,
    SpecError,
    UnreachableError,
)
from marless.rpc.client import Peer
from marless.rpc.nearby import CACHE_S, Caches
from marless.rpc.param_store import LATEST, ParamStore, PolicyWrite
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import ServerOptions, serving
from marless.rpc.v1 import param_store_pb2
from marless.services.param_store import cache
from marless.services.param_store.__main__ import build, parse
from marless.services.param_store.blobs import BlobPart, SharedFrames
from tests import tokens

KIB = 2**10
OPEN = Security()


def write(policy: str, expected: int, acting: bytes, **more: bytes) -> PolicyWrite:
    return PolicyWrite(policy, expected, f"{policy}/{expected}/{len(acting)}", {"acting": acting, **more})


class Counted:
    """A client of a cache, and how often the cache has called its upstream."""

    def __init__(self, store: ParamStore, servicer: cache.CacheServicer) -> None:
        self.store = store
        self._servicer = servicer

    @property
    def calls(self) -> tuple[int, int]:
        """Headers asked, and reads of bytes."""
        return self._servicer._upstream.asked, self._servicer._upstream.read

    @property
    def kept_bytes(self) -> int:
        return self._servicer._frames.kept_bytes


@pytest.fixture
def cached(store_config, store_address, tmp_path, monkeypatch):
    """A function that starts a cache of this test's store."""
    made: list[cache.CacheServicer] = []

    def servicer(upstream: cache.Upstream, frames: SharedFrames) -> cache.CacheServicer:
        made.append(make(upstream, frames))
        return made[-1]

    make = cache.CacheServicer
    monkeypatch.setattr(cache, "CacheServicer", servicer)

    @asynccontextmanager
    async def start(
        upstream: str = store_address, security: Security = OPEN, shown: Security = OPEN, **changes: int
    ) -> AsyncIterator[Counted]:
        server = ServerOptions(f"unix:{tmp_path}/cache-{len(made)}.sock", security)
        config = replace(store_config, server=server, upstream=upstream, **changes)
        async with serving(config.server, lambda address: build(config, address)) as address:
            peer = Peer(address, shown)
            yield Counted(ParamStore(peer, patience_s=0.0), made[-1])
            await peer.close()

    return start


async def acting(store: ParamStore, job: str, version: int = LATEST, epoch: int = 1, policy: str = "a") -> bytes:
    return bytes((await store.get(job, {policy: version}, ["acting"], epoch=epoch))[policy].blobs["acting"])


async def test_a_cache_serves_what_its_upstream_has_and_reads_each_version_once(cached, store, job):
    big = bytes(range(251)) * (3 * 2**20 // 251)
    await store.publish(job, 1, 0, [write("a", 0, big, learning=b"moments"), write("b", 0, b"")])
    async with cached() as near:
        read = [near.store.get(job, {"a": 1, "b": 1}, ["acting"], epoch=1) for _ in range(50)]
        for found in await asyncio.gather(*read):
            assert {policy: bytes(each.blobs["acting"]) for policy, each in found.items()} == {"a": big, "b": b""}
            assert [(each.version, each.round) for each in found.values()] == [(1, 0), (1, 0)]
        assert near.calls == (1, 1)
        assert near.kept_bytes == pytest.approx(len(big), abs=100)


async def test_a_cache_of_a_cache_is_one_too(cached, store, job):
    await store.publish(job, 1, 0, [write("a", 0, b"weights")])
    async with cached() as middle, cached(upstream=middle.store._peer.address) as near:
        assert [await acting(near.store, job, 1) for _ in range(3)] == [b"weights"] * 3
        assert (near.calls, middle.calls) == ((1, 1), (1, 1))


async def test_the_head_is_that_of_the_upstream_at_each_read(cached, store, job):
    async with cached() as near:
        for version in range(3):
            await store.publish(job, 1, version, [write("a", version, b"%d" % version)])
            assert await acting(near.store, job) == b"%d" % version
        assert await acting(near.store, job) == b"2"
        assert near.calls == (4, 3), "bytes of a known digest are not read again"


async def test_another_epoch_sees_what_was_published_under_the_same_number_after_a_deletion(cached, store, job):
    first = await store.acquire_epoch(job, "first")
    await store.publish(job, first, 0, [write("a", 0, b"before")])
    async with cached() as near:
        assert await acting(near.store, job, 1, first) == b"before"
        await store.delete_job(job, first)
        second = await store.acquire_epoch(job, "second")
        with pytest.raises(NotFoundError, match="policy 'a'"):
            await acting(near.store, job, 1, second)
        await store.publish(job, second, 0, [write("a", 0, b"after")])
        assert await acting(near.store, job, 1, second) == b"after"
        assert await acting(near.store, job, 1, epoch=0) == b"after", "without an epoch, the upstream is asked"


async def test_an_answer_holds_for_a_while_and_then_a_deleted_version_is_gone(cached, store, job, monkeypatch):
    await store.publish(job, 1, 0, [write("a", 0, b"weights")])
    async with cached() as near:
        assert await acting(near.store, job, 1) == b"weights"
        await store.delete_job(job)
        assert await acting(near.store, job, 1) == b"weights", f"for {cache.FRESH_S} s, to actors of that epoch only"
        monkeypatch.setattr(cache, "FRESH_S", 0.0)
        with pytest.raises(NotFoundError):
            await acting(near.store, job, 1, epoch=2)
        near._servicer._upstream._answers.clear()
        with pytest.raises(NotFoundError):
            await acting(near.store, job, 1)


async def test_what_a_cache_keeps_is_bounded_and_the_newest(cached, store, job):
    async with cached(cache_bytes=100 * KIB) as near:
        for version in range(1, 8):
            await store.publish(job, 1, version, [write("a", version - 1, bytes([version]) * 40 * KIB)])
            assert await acting(near.store, job, version) == bytes([version]) * 40 * KIB
            assert near.kept_bytes <= 100 * KIB
        asked, read = near.calls
        assert await acting(near.store, job, 7) == bytes([7]) * 40 * KIB
        assert near.calls == (asked, read)
        assert await acting(near.store, job, 5) == bytes([5]) * 40 * KIB  # of the newest three, which the store keeps
        assert near.calls == (asked, read + 1)
        large = b"x" * 60 * KIB  # more than half: passed on, and not kept
        await store.publish(job, 1, 9, [write("b", 0, large)])
        kept = near.kept_bytes
        assert await acting(near.store, job, 1, policy="b") == large
        assert near.kept_bytes == kept
        assert len(near._servicer._upstream._answers) <= cache.HEADERS


async def test_known_answers_are_bounded(cached, store, job, monkeypatch):
    monkeypatch.setattr(cache, "HEADERS", 4)
    await store.publish(job, 1, 0, [write(f"p{i}", 0, b"weights") for i in range(10)])
    async with cached() as near:
        for i in range(10):
            await acting(near.store, job, 1, policy=f"p{i}")
        assert len(near._servicer._upstream._answers) == 4


async def test_actors_read_through_a_cache_and_no_role_reads_more_than_they(cached, store_config, job, tmp_path):
    every, only_actors = tmp_path / "tokens", tmp_path / "only-actors"
    tokens.made(every)
    only_actors.mkdir(mode=0o700)
    tokens.write(only_actors, Role.ACTOR, tokens.token_of(Role.ACTOR))
    of = {role: Security(tokens.token_of(role)) for role in Role}
    secured = Security.of_process(Role.SERVICE, str(every), tls_cert="", tls_key="", tls_ca="")
    on_a_host = Security.of_process(Role.SERVICE, str(only_actors), tls_cert="", tls_key="", tls_ca="")
    config = replace(store_config, server=ServerOptions(f"unix:{tmp_path}/secured.sock", secured))
    async with serving(config.server, lambda address: build(config, address)) as upstream:
        peer = Peer(upstream, of[Role.SERVICE])
        await ParamStore(peer).publish(job, 1, 0, [write("a", 0, b"weights", learning=b"moments")])
        async with cached(upstream, on_a_host, of[Role.ACTOR]) as near:
            assert await acting(near.store, job) == b"weights"
            with pytest.raises(PermissionDeniedError, match="a cache serves the parts that actors read"):
                await near.store.get(job, {"a": 1}, ["learning"])
            with pytest.raises(PermissionDeniedError, match="may not call ParamStoreService/List"):
                await near.store.list(job)
        for role in (Role.CLIENT, Role.OPERATOR):
            async with cached(upstream, secured, of[role]) as near:
                with pytest.raises(PermissionDeniedError, match=f"role {role} may not call"):
                    await acting(near.store, job)
        async with cached(upstream, secured, of[Role.SERVICE]) as near:
            with pytest.raises(PermissionDeniedError, match="a cache serves the parts that actors read"):
                await near.store.get(job, {"a": 1}, ["learning"])
        async with cached(upstream, secured, Security("a guess of the right length")) as near:
            with pytest.raises(MarlessError, match="token is missing or wrong"):
                await acting(near.store, job)
        await peer.close()


async def test_over_tls_a_cache_at_a_socket_needs_no_certificate_for_it(store_config, job, tmp_path, tls):
    """Red before: workers dialled it with TLS, in which a socket has the name localhost, and never used it."""
    tokens.made(tmp_path / "tokens")
    files = ["--tls-cert", tls["server.pem"], "--tls-key", tls["server.key"], "--tls-ca", tls["ca.pem"]]
    given = ["--tokens", f"{tmp_path}/tokens", *files]
    upstream = replace(store_config, server=parse(["--listen", "127.0.0.1:0", *given]).server)
    async with serving(upstream.server, lambda at: build(upstream, at)) as address:
        shown = {"tls_cert": tls["worker.pem"], "tls_key": tls["worker.key"], "tls_ca": tls["ca.pem"]}
        peer = Peer(address, Security(tokens.token_of(Role.SERVICE), **shown))
        store = ParamStore(peer)
        await store.publish(job, 1, 0, [write("a", 0, b"weights")])
        config = parse(["--listen", f"unix:{tmp_path}/near.sock", "--upstream", address, *given])
        async with serving(config.server, lambda at: build(config, at)) as near:
            caches = Caches(store, [near], Security(tokens.token_of(Role.ACTOR), **shown), "worker")
            assert await acting(caches, job, 1) == b"weights"
            assert not caches._caches[0].rests_until_s, "it was the cache that answered"
            await caches.close()
        await peer.close()


async def test_a_cache_refuses_everything_else_and_names_its_upstream(cached, store_address, job):
    async with cached() as near:
        for call in (
            near.store.list(job),
            near.store.publish(job, 1, 0, [write("a", 0, b"weights")]),
            near.store.pin(job, "a", 1),
            near.store.acquire_epoch(job, "1"),
            near.store.delete_job(job),
            anext(near.store.watch(job)),
        ):
            with pytest.raises(SpecError, match=f"this is a cache of the param_store at {store_address}"):
                await call


async def test_a_cache_says_that_its_upstream_is_gone_and_serves_again_when_it_is_back(
    cached, store_config, job, tmp_path
):
    address = f"unix:{tmp_path}/other.sock"
    config = replace(store_config, server=ServerOptions(address, OPEN))
    async with cached(address) as near:
        with pytest.raises(UnreachableError, match=f"param_store at {address}"):
            await acting(near.store, job, 1)
        async with serving(config.server, lambda address: build(config, address)):
            peer = Peer(address, Security())
            await ParamStore(peer).publish(job, 1, 0, [write("a", 0, b"weights")])
            await peer.close()
            patient = ParamStore(near.store._peer)  # the cache's connection waits a second before it tries again
            assert await acting(patient, job, 1) == b"weights"


async def test_actors_read_from_the_store_when_no_cache_answers(store, job, tmp_path):
    await store.publish(job, 1, 0, [write("a", 0, b"weights")])
    gone = [f"unix:{tmp_path}/gone-{i}.sock" for i in range(2)]
    caches = Caches(store, gone, Security(), "worker")
    with capture_logs() as logs:
        for _ in range(3):
            assert await acting(caches, job, 1) == b"weights"
    unusable = [each["cache"] for each in logs if each["event"] == "cache.unusable"]
    assert sorted(unusable) == gone, "each is tried once, and then rests"
    await caches.close()


async def test_a_cache_without_the_version_does_not_hide_that_the_store_has_it(cached, store, job):
    """As a cache of a store that was replaced would: the store's own answer counts."""
    await store.publish(job, 1, 0, [write("a", 0, b"weights")])
    async with cached() as near:
        near._servicer._upstream.header = _nothing
        caches = Caches(store, [near.store._peer.address], Security(), "worker")
        assert await acting(caches, job, 1) == b"weights"
        assert not caches._caches[0].rests_until_s, "it has not failed"
        await caches.close()


async def _nothing(_request: object) -> param_store_pb2.GetHeader:
    raise NotFoundError("no such version")


async def test_readers_spread_over_the_caches():
    addresses = [f"unix:/nowhere-{i}" for i in range(4)]
    firsts = [Caches(None, addresses, Security(), f"actor-{i}")._caches[0].peer.address for i in range(400)]
    assert all(60 < firsts.count(address) < 140 for address in addresses)


def test_bytes_that_are_not_those_declared_are_refused():
    parts = [BlobPart("acting", 4, hashlib.sha256(b"good").digest()), BlobPart("carry", 0, hashlib.sha256().digest())]
    for sent, problem in ((b"goo", "fewer"), (b"goodx", "more"), (b"evil", "do not match")):
        checked = cache._Checked(parts)
        with pytest.raises(CorruptError, match=problem):
            for at in range(len(sent)):
                checked.add(memoryview(sent)[at : at + 1])
            checked.end()
    with pytest.raises(CorruptError, match="do not match"):
        cache._Checked([BlobPart("acting", 0, b"")])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--upstream", "nowhere"], "--upstream nowhere: give the address to dial"),
        (["--listen", "unix:/x", "--upstream", "unix:/x"], "this is the address of the cache itself"),
        (["--upstream", "unix:/x", "--data-dir", "/d"], "a cache has no Redis; leave out --data-dir"),
        (["--upstream", "unix:/x", "--cache-bytes", "0"], "give a whole number of at least 1"),
    ],
)
def test_bad_options_are_named(capsys, given, problem):
    with pytest.raises(SystemExit) as ended:
        parse(given)
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


@asynccontextmanager
async def process(upstream: str, listen: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A cache that is a process of its own."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "marless.services.param_store",
        "--listen",
        listen,
        "--upstream",
        upstream,
        "--exit-with-stdin",
        stdin=asyncio.subprocess.PIPE,
    )
    yield started
    started.stdin.close()
    assert await started.wait() == 0


async def test_a_cache_is_a_process_like_any_other_service(store, store_address, job, tmp_path):
    await store.publish(job, 1, 0, [write("a", 0, b"weights")])
    listen = f"unix:{tmp_path}/process.sock"
    async with process(store_address, listen):
        peer = Peer(listen, Security())
        assert await acting(ParamStore(peer), job, 1) == b"weights"
        await peer.close()


@pytest.mark.slow
async def test_a_cache_that_hangs_is_given_up(store, store_address, job, tmp_path):
    """Red without keepalive: the read would take as long as it may, `CACHE_S`."""
    listen = f"unix:{tmp_path}/process.sock"
    await store.publish(job, 1, 0, [write("a", 0, b"first")])
    async with process(store_address, listen) as hanging:
        peer = Peer(listen, Security())
        assert await acting(ParamStore(peer), job, 1) == b"first", "it serves"
        await peer.close()
        caches = Caches(store, [listen], Security(), "worker")
        assert await acting(caches, job, 1) == b"first"
        assert not caches._caches[0].rests_until_s
        await store.publish(job, 1, 1, [write("a", 1, b"second")])
        hanging.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        assert await acting(caches, job, 2) == b"second"
        assert time.monotonic() - began_s < CACHE_S / 2
        assert caches._caches[0].rests_until_s, "it rests"
        hanging.send_signal(signal.SIGCONT)
        await caches.close()
