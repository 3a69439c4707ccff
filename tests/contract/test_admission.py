"""Which calls a service serves at a time, which wait for their turn, and what 2,000 workers and pulls meet."""

import asyncio
import hashlib
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from marless.core.errors import NotFoundError, UnreachableError
from marless.rpc import admission, chunks
from marless.rpc.admission import Limits, Streams, Transfers
from marless.rpc.client import PACKAGE, Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.services.param_store.blobs import BlobPart, SharedFrames
from tests.contract.test_param_store import write

LONG_S = 30.0


class Gate:
    """A service whose calls last until they are let go; it notes who is being served."""

    def __init__(self) -> None:
        self.serving: list[bytes] = []
        self.most = 0
        self.go = asyncio.Event()
        self.changed = asyncio.Condition()

    async def hold(self, request: bytes, context: object) -> bytes:
        self.serving.append(request)
        self.most = max(self.most, len(self.serving))
        async with self.changed:
            self.changed.notify_all()
        try:
            await self.go.wait()
        finally:
            self.serving.remove(request)
        return request

    def register(self, server: grpc.aio.Server) -> None:
        method = grpc.unary_unary_rpc_method_handler(self.hold)
        handlers = dict.fromkeys(("Work", "Get", "Ask"), method)
        server.add_registered_method_handlers(f"{PACKAGE}.Gate", handlers)

    async def until(self, calls: int) -> None:
        async with asyncio.timeout(LONG_S), self.changed:
            await self.changed.wait_for(lambda: len(self.serving) >= calls)


@asynccontextmanager
async def gate(place: Path, limits: Limits):
    served = Gate()

    @asynccontextmanager
    async def build(_address: str):
        yield ServedService(served.register, limits=limits)

    async with serving(ServerOptions(f"unix:{place}/gate.sock", Security()), build) as address:
        peer = Peer(address, Security(), "gate")
        try:
            yield served, peer
        finally:
            served.go.set()
            await peer.close()


def call(peer: Peer, method: str, what: bytes, job: str = "") -> asyncio.Task[bytes]:
    metadata = ((admission.JOB_KEY, job),) if job else ()
    asked = peer.channel.unary_unary(f"/{PACKAGE}.Gate/{method}")(what, timeout=LONG_S, metadata=metadata)

    async def answer() -> bytes:
        return await asked

    return asyncio.create_task(answer())


async def refused(task: asyncio.Task[bytes]) -> bool:
    try:
        await asyncio.wait_for(task, LONG_S)
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(error.trailing_metadata())["retry-after-ms"] == "1000"
        return True
    return False


async def test_streams_do_not_count_among_calls_and_have_a_limit_that_may_grow(tmp_path, monkeypatch):
    """Red before: 600 workers' streams were 600 of 512 calls, and ended their job."""
    monkeypatch.setattr("marless.rpc.server.AdmissionInterceptor", lambda: admission.AdmissionInterceptor(2))
    workers = 5
    async with gate(tmp_path, {"Work": Streams(lambda: workers)}) as (served, peer):
        open_ones = [call(peer, "Work", b"w%d" % index) for index in range(5)]
        await served.until(5)
        assert await refused(call(peer, "Work", b"one too many"))
        open_ones += [call(peer, "Ask", b"a%d" % index) for index in range(2)]
        await served.until(7)
        assert await refused(call(peer, "Ask", b"one too many"))
        workers = 6
        open_ones.append(call(peer, "Work", b"now there is room"))
        await served.until(8)
        served.go.set()
        assert len(await asyncio.gather(*open_ones)) == 8
        assert await call(peer, "Ask", b"again") == b"again"


async def test_a_call_counts_until_it_has_ended_however_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("marless.rpc.server.AdmissionInterceptor", lambda: admission.AdmissionInterceptor(1))
    async with gate(tmp_path, {}) as (served, peer):
        for cancelled in (False, True, False):
            first = call(peer, "Ask", b"first")
            await served.until(1)
            assert await refused(call(peer, "Ask", b"beside it"))
            if cancelled:
                first.cancel()
            served.go.set()
            async with asyncio.timeout(LONG_S):
                while await refused(call(peer, "Ask", b"after it")):
                    pass
            await asyncio.gather(first, return_exceptions=True)
            served.go.clear()


async def test_no_more_transfers_are_served_at_a_time_than_the_service_says(tmp_path):
    async with gate(tmp_path, {"Get": Transfers(at_once=2)}) as (served, peer):
        calls = [call(peer, "Get", b"%d" % index) for index in range(20)]
        await served.until(2)
        served.go.set()
        assert await asyncio.gather(*calls) == [b"%d" % index for index in range(20)]
        assert served.most == 2


async def test_jobs_take_turns_at_transfers():
    turns, order = admission.FairSemaphore(1), list[str]()

    async def transfer(job: str, name: str) -> None:
        await turns.take(job)
        order.append(name)
        await asyncio.sleep(0)
        turns.release()

    many = [transfer("a", f"a{index}") for index in range(20)]
    await asyncio.gather(*many, transfer("b", "b"))
    assert order.index("b") <= 2, "a job with one transfer does not wait for all of another's"
    assert [name for name in order if name != "b"] == [f"a{index}" for index in range(20)]


async def test_a_transfer_whose_caller_goes_away_passes_its_turn_on(tmp_path):
    async with gate(tmp_path, {"Get": Transfers(at_once=1)}) as (served, peer):
        first = call(peer, "Get", b"first")
        await served.until(1)
        gone, waiting = call(peer, "Get", b"gone"), call(peer, "Get", b"waiting")
        await asyncio.sleep(0)
        gone.cancel()
        first.cancel()
        served.go.set()
        assert await asyncio.wait_for(waiting, LONG_S) == b"waiting"


async def test_more_transfers_than_may_wait_are_refused_for_now(tmp_path, monkeypatch):
    monkeypatch.setattr(admission, "MAX_WAITING", 3)
    async with gate(tmp_path, {"Get": Transfers(at_once=1)}) as (served, peer):
        first = call(peer, "Get", b"first")
        await served.until(1)
        others = [call(peer, "Get", b"%d" % index) for index in range(10)]
        for _, ended in zip(range(7), asyncio.as_completed(others), strict=False):
            with pytest.raises(grpc.aio.AioRpcError, match="wait for their turn already"):
                await ended
        served.go.set()
        answers = await asyncio.gather(first, *others, return_exceptions=True)
        assert len([each for each in answers if isinstance(each, bytes)]) == 4


# What is read by many


def part(data: bytes) -> BlobPart:
    return BlobPart("acting", len(data), hashlib.sha256(data).digest())


async def joined(frames) -> bytes:
    return b"".join([bytes(chunks.data_of(frame)) async for frame in frames])


async def test_what_many_read_at_once_is_read_once_and_the_frames_are_the_same_objects():
    shared, data, reads, go = SharedFrames(), bytes(range(256)) * 6000, 0, asyncio.Event()

    async def read():
        nonlocal reads
        reads += 1
        await go.wait()
        yield [data]

    readers = [asyncio.create_task(joined(shared.of("v", [part(data)], read))) for _ in range(20)]
    await asyncio.sleep(0)
    readers[0].cancel()
    go.set()
    assert set(await asyncio.gather(*readers[1:])) == {data}
    first = [frame async for frame in shared.of("v", [part(data)], read)]
    again = [frame async for frame in shared.of("w", [part(data)], read)]
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert reads == 1


async def test_a_failed_read_is_not_kept_and_large_ones_are_not_either():
    shared, data = SharedFrames(limit_bytes=100), b"x" * 40

    async def broken():
        raise NotFoundError("retired")
        yield []

    async def read():
        yield [data]

    with pytest.raises(NotFoundError, match="retired"):
        await joined(shared.of("v", [part(data)], broken))
    assert await joined(shared.of("v", [part(data)], read)) == data
    kept = shared.kept_bytes
    assert kept > 0
    large = b"y" * 60

    async def read_large():
        yield [large]

    assert await joined(shared.of("w", [part(large)], read_large)) == large
    assert shared.kept_bytes == kept
    for index in range(5):
        other = bytes([index]) * 40

        async def read_other(other: bytes = other):
            yield [other]

        assert await joined(shared.of(index, [part(other)], read_other)) == other
        assert shared.kept_bytes <= 100


async def test_a_reader_that_takes_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(chunks, "TAKEN_S", 0.01)

    class Stalled:
        async def write(self, message: bytes) -> None:
            await asyncio.Event().wait()

    with pytest.raises(UnreachableError, match="no frame was taken"):
        await chunks.write(Stalled(), b"frame")


async def test_a_crowd_of_pulls_is_served_without_a_refusal(store, job):
    """Beyond the limit of calls. Red before: of 1,000 pulls, 386 were refused."""
    data = bytes(20_000)
    await store.publish(job, 0, 0, [write("p", 0, acting=data)])
    many = [ParamStore(store._peer, patience_s=0.0) for _ in range(600)]
    results = await asyncio.gather(*(each.get(job, {"p": 1}, ["acting"]) for each in many))
    assert {bytes(each["p"].blobs["acting"]) for each in results} == {data}
