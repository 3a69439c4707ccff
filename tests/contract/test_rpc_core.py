"""What all services rely on: errors that arrive as they were raised, tokens, TLS, bulk transfers, limits."""

import asyncio
import inspect
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given
from hypothesis import strategies as st

from marless.core import errors
from marless.fleet.handover import Handover
from marless.rpc import chunks, roles
from marless.rpc.addresses import is_local
from marless.rpc.client import MAX_MESSAGE_BYTES, PACKAGE, Peer
from marless.rpc.concurrency import retry
from marless.rpc.errors import STATUS, from_rpc
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, bulk_download, bulk_upload, serving
from marless.rpc.v1 import common_pb2
from tests import tokens

RIGHT = tokens.client(Role.OPERATOR)
ERRORS = sorted(STATUS, key=lambda cls: cls.__name__)
SENTENCE = "policy 'φ' is gone;\nit was 100 % retired"


class Probe:
    """A service with one method of each kind; what a call carries decides what happens."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def raise_if_told(self, what: bytes) -> None:
        self.seen.append(what)
        if what == b"defect":
            raise ValueError("a secret in a traceback")
        if what.startswith(b"raise "):
            raise getattr(errors, what.removeprefix(b"raise ").decode())(SENTENCE)

    async def unary(self, request, context):
        self.raise_if_told(request)
        return request

    async def down(self, request, context):
        yield request
        self.raise_if_told(request)

    async def up(self, requests, context):
        async for request in requests:
            self.raise_if_told(request)
        return b"done"

    async def both(self, requests, context):
        async for request in requests:
            yield request
            self.raise_if_told(request)

    async def send(self, frames, context):
        header, frames = await chunks.read_header(frames, common_pb2.PolicyVersion)
        data = memoryview(bytearray(header.version))
        await chunks.read_data(frames, data)
        return common_pb2.PolicyVersion(policy=data.hex())

    async def fetch(self, request, context):
        for frame in chunks.frames(request, [b"\x07" * request.version]):
            yield frame

    def register(self, server: grpc.aio.Server) -> None:
        methods = {
            "Unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "Down": grpc.unary_stream_rpc_method_handler(self.down),
            "Up": grpc.stream_unary_rpc_method_handler(self.up),
            "Both": grpc.stream_stream_rpc_method_handler(self.both),
            "Send": bulk_upload(self.send, common_pb2.PolicyVersion.SerializeToString),
            "Fetch": bulk_download(self.fetch, common_pb2.PolicyVersion.FromString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.Probe", methods),))


@asynccontextmanager
async def probe_served(listen: str, security: Security, probe: Probe | ServedService | None = None):
    @asynccontextmanager
    async def build(_address):
        yield probe if isinstance(probe, ServedService) else ServedService((probe or Probe()).register)

    async with serving(ServerOptions(listen, security), build) as address:
        yield address


@asynccontextmanager
async def probe_peer(tmp_path, security: Security = Security(), probe: Probe | None = None):  # noqa: B008  # frozen
    """A probe, served to clients with that security, and a peer that is one."""
    served = replace(security, token="", tokens=tokens.made(tmp_path / "tokens")) if security.token else security
    async with probe_served(f"unix:{tmp_path}/probe.sock", served, probe) as address:
        peer = Peer(address, security)
        yield peer
        await peer.close()


async def ask(peer: Peer, kind: str, what: bytes) -> list[bytes]:
    """Call one kind of method; returns what came back before it ended."""
    path = f"/{PACKAGE}.Probe/{kind}"
    if kind == "Unary":
        return [await peer.call(peer.channel.unary_unary(path), what)]
    if kind == "Down":
        return [reply async for reply in peer.stream(peer.channel.unary_stream(path), what)]
    stream = peer.channel.stream_unary if kind == "Up" else peer.channel.stream_stream
    call = stream(path)(iter([what]), metadata=peer.metadata)
    try:
        return [await call] if kind == "Up" else [reply async for reply in call]
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error, "test") from None


KINDS = ("Unary", "Down", "Up", "Both")


def test_every_domain_error_has_a_status():
    declared = {cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.MarlessError)}
    assert set(STATUS) == declared - {errors.MarlessError}


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_arrive_as_they_were_raised(tmp_path, kind):
    async with probe_peer(tmp_path) as peer:
        for cls in ERRORS:
            with pytest.raises(errors.MarlessError) as caught:
                await ask(peer, kind, f"raise {cls.__name__}".encode())
            assert type(caught.value) is cls
            assert str(caught.value) == SENTENCE
        assert await ask(peer, kind, b"fine") == [b"done" if kind == "Up" else b"fine"]


@pytest.mark.parametrize("kind", KINDS)
async def test_defects_are_hidden(tmp_path, kind):
    async with probe_peer(tmp_path) as peer:
        with pytest.raises(errors.InternalError) as caught:
            await ask(peer, kind, b"defect")
        assert "secret" not in str(caught.value)


async def test_other_clients_get_the_status_code(tmp_path):
    async with probe_peer(tmp_path) as peer:
        for cls, code in STATUS.items():
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await peer.channel.unary_unary(f"/{PACKAGE}.Probe/Unary")(f"raise {cls.__name__}".encode())
            assert caught.value.code() == code


async def test_who_is_refused_for_now_is_told_when_to_try_again(tmp_path):
    class Full(Probe):
        async def unary(self, request, context):
            raise errors.OverloadedError("no room in the probe", retry_after_s=2.5)

    async with probe_peer(tmp_path, probe=Full()) as peer:
        with pytest.raises(errors.OverloadedError) as caught:
            await ask(peer, "Unary", b"")
        assert caught.value.retry_after_s == 2.5
        with pytest.raises(grpc.aio.AioRpcError) as raw:
            await peer.channel.unary_unary(f"/{PACKAGE}.Probe/Unary")(b"")
        assert dict(raw.value.trailing_metadata())["retry-after-ms"] == "2500"


async def test_what_grpc_itself_refuses_passes_unless_it_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr("marless.rpc.server.MAX_OPEN_RPCS", 1)
    release = asyncio.Event()

    class Busy(Probe):
        async def unary(self, request, context):
            await release.wait()
            return request

    async with probe_peer(tmp_path, probe=Busy()) as peer:
        first = asyncio.create_task(ask(peer, "Unary", b"first"))
        await asyncio.wait([first], timeout=0.1)
        refusal = r"^no room in the unix:.*: Concurrent RPC limit exceeded"
        with pytest.raises(errors.OverloadedError, match=refusal) as refused:
            await ask(peer, "Unary", b"second")
        assert refused.value.retry_after_s > 0
        release.set()
        assert await first == [b"first"]
        with pytest.raises(errors.TooLargeError, match="larger than max"):
            await ask(peer, "Unary", bytes(MAX_MESSAGE_BYTES + 1))


async def test_long_sentences_are_cut_but_keep_their_class(tmp_path):
    class Wordy(Probe):
        async def unary(self, request, context):
            raise errors.SpecError(request.decode() * 4000)

    async with probe_peer(tmp_path, probe=Wordy()) as peer:
        for line in ("field wrong\n", "ψ€😀"):
            with pytest.raises(errors.SpecError) as caught:
                await ask(peer, "Unary", line.encode())
            assert str(caught.value).startswith(line * 100)
            assert str(caught.value).endswith(" …")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sentence", "least"), [("a sentence", 4096), ("φ" * 4000, 700)])
async def test_a_detail_arrives_beside_any_sentence_and_keeps_its_end(tmp_path, kind, sentence, least):
    class Detailed(Probe):
        def raise_if_told(self, what):
            error = errors.UnavailableError(sentence)
            error.detail = "begin " + "φ%\n" * 2000 + " end"
            raise error

    async with probe_peer(tmp_path, probe=Detailed()) as peer:
        with pytest.raises(errors.UnavailableError) as caught:
            await ask(peer, kind, b"tell")
    assert caught.value.detail.endswith(" end")
    assert len(caught.value.detail.encode()) >= least


async def test_failures_of_the_transport_are_domain_errors(tmp_path):
    nobody = Peer(f"unix:{tmp_path}/nobody.sock", Security())
    for kind in ("Unary", "Down"):
        with pytest.raises(errors.UnavailableError):
            await ask(nobody, kind, b"")
    with pytest.raises(errors.UnavailableError):
        await nobody.send("Probe/Send", common_pb2.Drain(), [], common_pb2.Drain)
    with pytest.raises(errors.UnavailableError):
        await nobody.fetch("Probe/Fetch", common_pb2.Drain(), common_pb2.Drain)
    await nobody.close()


@pytest.fixture
def operators_may_probe(monkeypatch):
    for kind in KINDS:
        monkeypatch.setitem(roles.ALLOWED, f"/{PACKAGE}.Probe/{kind}", frozenset({Role.OPERATOR}))


@pytest.mark.usefixtures("operators_may_probe")
@pytest.mark.parametrize("kind", KINDS)
async def test_calls_need_the_token(tmp_path, kind):
    probe = Probe()
    async with probe_peer(tmp_path, RIGHT, probe) as right:
        assert await ask(right, kind, b"fine") == [b"done" if kind == "Up" else b"fine"]
        for token in ("", "wrong", f"{RIGHT.token} ", str(RIGHT.token)[:-1]):
            peer = Peer(right.address, Security(token=token))
            with pytest.raises(errors.UnauthenticatedError, match="MARLESS_TOKEN"):
                await ask(peer, kind, b"intruder")
            await peer.close()
        peer = Peer(right.address, tokens.client(Role.CLIENT))
        with pytest.raises(errors.PermissionDeniedError, match=f"role client may not call Probe/{kind}; .* operator"):
            await ask(peer, kind, b"intruder")
        await peer.close()
        health = health_pb2_grpc.HealthStub(right.channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    assert set(probe.seen) == {b"fine"}


def test_tokens_are_not_shown(tmp_path):
    security = replace(RIGHT, tokens=tokens.made(tmp_path / "tokens"))
    assert security.tokens.of(Role.OPERATOR) == RIGHT.token
    assert "canary" not in repr(security) + repr(security.tokens) + repr(Handover("canary", "canary"))


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.1.2.3:7001", "store.example:7001", "[::]:0"])
async def test_plaintext_beyond_this_machine_is_refused_on_both_sides(tmp_path, address):
    assert not is_local(address)
    with pytest.raises(errors.SpecError, match=r"not a loopback address: set --tokens DIR .* --tls-cert"):
        async with probe_served(address, Security(tokens=tokens.made(tmp_path / "tokens"))):
            pass
    with pytest.raises(errors.SpecError, match="not a loopback address"):
        Peer(address, RIGHT)


@pytest.mark.parametrize("address", ["127.0.0.1:0", "127.8.8.8:1", "localhost:1", "[::1]:1", "unix:/run/x"])
def test_what_stays_on_this_machine_is_local(address):
    assert is_local(address)


async def test_a_busy_address_is_one_sentence():
    async with probe_served("127.0.0.1:0", Security()) as address:
        with pytest.raises(errors.SpecError, match=rf"cannot listen on {address}: it is in use"):
            async with probe_served(address, Security()):
                pass


@pytest.mark.usefixtures("operators_may_probe")
async def test_tls_admits_only_its_own(tmp_path, tls):
    served = Security("", tls["server.pem"], tls["server.key"], tokens=tokens.made(tmp_path / "tokens"))
    async with probe_served("127.0.0.1:0", served) as address:
        peer = Peer(address, replace(RIGHT, tls_ca=tls["ca.pem"]))
        assert await ask(peer, "Unary", b"fine") == [b"fine"]
        await peer.close()
        strangers = {
            errors.UnauthenticatedError: Security("wrong", tls_ca=tls["ca.pem"]),
            errors.UnavailableError: replace(RIGHT, tls_ca=tls["stranger.pem"]),
        }
        for error, stranger in strangers.items():
            peer = Peer(address, stranger)
            with pytest.raises(error):
                await ask(peer, "Unary", b"")
            await peer.close()
        plaintext = Peer(address, RIGHT)
        with pytest.raises(errors.UnavailableError):
            await ask(plaintext, "Unary", b"")
        await plaintext.close()


def test_tls_without_a_token_is_refused_beyond_this_machine(tls):
    with pytest.raises(errors.SpecError, match="set --tokens"):
        Security("", tls["server.pem"], tls["server.key"]).server_credentials("0.0.0.0:0")


async def test_a_clients_token_does_not_pass_for_the_tokens_of_a_service():
    with pytest.raises(errors.SpecError, match=r"MARLESS_TOKEN is for clients; a service reads .* --tokens"):
        async with probe_served("127.0.0.1:0", RIGHT):
            pass


def test_a_missing_tls_file_is_named():
    with pytest.raises(errors.SpecError, match=r"/nowhere/ca\.pem"):
        Peer("127.0.0.1:1", Security(tls_ca="/nowhere/ca.pem"))


SIZES = st.one_of(
    st.integers(0, 200),
    st.sampled_from([2**20 - 1, 2**20, 2**20 + 1, 2**21, 2**21 + 1, 127, 128, 16383, 16384]),
)


async def stream(frames):
    for frame in frames:
        yield frame


async def received(frames, into: int) -> tuple[common_pb2.PolicyVersion, bytes]:
    header, rest = await chunks.read_header(stream(frames), common_pb2.PolicyVersion)
    data = memoryview(bytearray(into))
    await chunks.read_data(rest, data)
    return header, bytes(data)


@given(st.lists(SIZES, max_size=5), st.integers(0, 255))
def test_transfers_arrive_whole_and_as_chunk_messages(sizes, fill):
    header = common_pb2.PolicyVersion(policy="a", version=len(sizes))
    buffers = [bytes([(fill + i) % 256]) * size for i, size in enumerate(sizes)]
    frames = list(chunks.frames(header, buffers))
    whole = b"".join(buffers)
    assert asyncio.run(received(frames, len(whole))) == (header, whole)

    messages = [common_pb2.Chunk.FromString(frame) for frame in frames]  # any gRPC client can read them …
    assert messages[0].header == header.SerializeToString()
    assert not any(message.header for message in messages[1:])
    assert b"".join(message.data for message in messages) == whole
    assert len(messages) == max(-(-len(whole) // chunks.PIECE_BYTES), 1)
    assert all(len(message.data) == chunks.PIECE_BYTES for message in messages[:-1])
    assert [message.SerializeToString() for message in messages] == frames  # … and write them

    alone = [chunks.header_frame(header), *chunks.data_frames(buffers)]  # as others may send it
    assert asyncio.run(received(alone, len(whole))) == (header, whole)
    assert asyncio.run(all_of(chunks.after(header, stream(alone[1:])))) == frames


async def all_of(frames):
    return [frame async for frame in frames]


@given(st.lists(SIZES, min_size=1, max_size=3), st.integers(1, 100))
def test_transfers_of_another_length_are_refused(sizes, by):
    frames = list(chunks.frames(common_pb2.PolicyVersion(), [bytes(size) for size in sizes]))
    total = sum(sizes)
    with pytest.raises(errors.CorruptError, match=f"ended after {total} of the {total + by}"):
        asyncio.run(received(frames, total + by))
    if total >= by:
        with pytest.raises(errors.CorruptError, match="more than"):
            asyncio.run(received(frames, total - by))


@given(st.binary(max_size=64))
def test_what_is_no_frame_is_refused(frame):
    try:
        body = chunks.data_of(frame)
    except errors.CorruptError:
        return
    message = common_pb2.Chunk.FromString(frame)
    assert (message.header, message.data) == (b"", bytes(body))


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\x12\x01a"],
        [b"\x0a\x01\xff"],
        [b"\x0a\x02\x08"],
        [b"\x0a\xff\xff\xff\xff\xff\x00"],
        [b"\x0a\x00", b"\x0a\x01a"],
        [b"\x0a\x00\x0a\x01a"],
        [b"\x0a\x00\x12\x01a\x12\x01a"],
        [b"\x0a\x00\x12\x01a", b"\x12\x01a"],
        [b"\x12\x01a\x0a\x00"],
    ],
)
def test_broken_transfers_are_refused(frames):
    with pytest.raises(errors.CorruptError):
        asyncio.run(received(frames, 1))


@pytest.mark.parametrize("size", [0, 1, 2**20, 5 * 2**20 + 3])
async def test_bulk_transfers_over_the_wire(tmp_path, size):
    async with probe_peer(tmp_path) as peer:
        header = common_pb2.PolicyVersion(version=size)
        data = bytes(range(256)) * (size // 256 + 1)
        reply = await peer.send("Probe/Send", header, [memoryview(data)[:size]], common_pb2.PolicyVersion)
        assert bytes.fromhex(reply.policy) == data[:size]
        with pytest.raises(errors.CorruptError):
            await peer.send("Probe/Send", header, [data[:size], b"x"], common_pb2.PolicyVersion)
        got, fetched = await peer.fetch("Probe/Fetch", header, common_pb2.PolicyVersion)
        assert got == header
        assert fetched == b"\x07" * size


async def test_health_follows_the_service_and_its_end(tmp_path):
    ready, drained = [True], []

    async def is_ready() -> bool:
        return ready[0]

    async def drain() -> None:
        drained.append(True)

    service = ServedService(Probe().register, is_ready, drain)
    status = health_pb2.HealthCheckResponse
    async with probe_served(f"unix:{tmp_path}/probe.sock", Security(), service) as address:
        peer = Peer(address, Security())
        watch = health_pb2_grpc.HealthStub(peer.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == status.SERVING
        for value, expected in ((False, status.NOT_SERVING), (True, status.SERVING)):
            ready[0] = value
            assert (await watch.read()).status == expected
        watch.cancel()
        await peer.close()
        assert not drained
    assert drained


@pytest.mark.parametrize("asked", [True, False])
async def test_reflection_is_there_when_asked_for(tmp_path, asked):
    @asynccontextmanager
    async def build(_address):
        yield ServedService(Probe().register, name="ParamStoreService")

    served = Security(tokens=tokens.made(tmp_path / "tokens"))
    options = ServerOptions(f"unix:{tmp_path}/probe.sock", served, reflection=asked)
    async with serving(options, build) as address:
        peer = Peer(address, RIGHT)
        for metadata, refusal in (
            (peer.metadata, grpc.StatusCode.UNIMPLEMENTED),
            ((), grpc.StatusCode.UNAUTHENTICATED),
            (tokens.client(Role.SERVICE).metadata(), grpc.StatusCode.PERMISSION_DENIED),
        ):
            call = reflection_pb2_grpc.ServerReflectionStub(peer.channel).ServerReflectionInfo(metadata=metadata)
            if asked and metadata == peer.metadata:
                await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                await call.done_writing()
                [reply] = [reply async for reply in call]
                names = [service.name for service in reply.list_services_response.service]
                assert f"{PACKAGE}.ParamStoreService" in names
            else:
                if refusal != grpc.StatusCode.UNIMPLEMENTED:
                    await call.done_writing()  # a stranger's stream is read to its end, for ten seconds at most
                assert await call.code() == refusal
        await peer.close()


async def test_retry_repeats_what_is_unavailable_until_patience_ends():
    outcomes = [errors.UnavailableError("a"), errors.UnavailableError("b"), 7]

    async def operation() -> int:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert await retry(operation, patience_s=10.0) == 7
    outcomes[:] = [errors.UnavailableError("first"), 8]
    with pytest.raises(errors.UnavailableError, match="first"):
        await retry(operation, patience_s=0.0)
    outcomes[:] = [errors.OverloadedError("full", retry_after_s=0.2), 9]
    started_s = time.monotonic()
    assert await retry(operation, patience_s=10.0) == 9
    assert time.monotonic() - started_s >= 0.2
    outcomes[:] = [errors.OverloadedError("full", retry_after_s=20.0), 9]
    with pytest.raises(errors.OverloadedError):
        await retry(operation, patience_s=10.0)
    outcomes[:] = [errors.ConflictError("lost"), 8]
    with pytest.raises(errors.ConflictError):
        await retry(operation, patience_s=10.0)
