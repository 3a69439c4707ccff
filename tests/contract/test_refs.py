"""Files lent by reference, over real gRPC: mapped where they are seen, transferred elsewhere, given to nobody else."""

import asyncio
import os
import secrets
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from marless.core.errors import CorruptError, PermissionDeniedError, SpecError, UnavailableError, UnreachableError
from marless.rpc import refs
from marless.rpc.client import Peer
from marless.rpc.refs import AT_ONCE, PIECE_BYTES, Borrowed, Loans, Ref, placed, seen, write_new
from marless.rpc.security import Security
from marless.rpc.server import ServedService, ServerOptions, serving
from marless.rpc.v1 import common_pb2
from marless.services.learner_pool.servicer import LearnerPoolServicer

TASK, WORKER, TICKET = "job/0/update/0", "learner-0", "a ticket"


class Pool:
    """A service that lends files, and what it has been asked for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.running = {(TASK, WORKER, TICKET)}
        self.loans = Loans(lambda *who: who in self.running)
        self.peer = Peer(address, Security(), "learner_pool")
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        servicer = LearnerPoolServicer(None, None, None, self.loans, None, None, self.address)
        made = self._stack.enter_async_context(serving(ServerOptions(self.address, Security()), _built(servicer)))
        await made

    async def stop(self) -> None:
        await self._stack.aclose()

    def borrowed(self, worker: str = WORKER, ticket: str = TICKET, patience_s: float = 0.5) -> Borrowed:
        return Borrowed(self.peer, "LearnerPoolService", worker, lambda: ticket, patience_s=patience_s)


def _built(servicer: LearnerPoolServicer) -> Callable[[str], object]:
    class Built:
        async def __aenter__(self):
            return ServedService(servicer.register)

        async def __aexit__(self, *_):
            return None

    return lambda _: Built()


@pytest.fixture
async def pool(tmp_path) -> AsyncIterator[Pool]:
    pool = Pool(f"unix:{tmp_path}/pool.sock")
    await pool.start()
    yield pool
    await pool.stop()
    await pool.peer.close()


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "lent"
    path.write_bytes(secrets.token_bytes(2 * PIECE_BYTES + 5))
    return path


def elsewhere(ref: Ref) -> Ref:
    """The reference as a worker on another host finds it."""
    there = Ref()
    there.CopyFrom(ref)
    there.host = "another kernel"
    return there


def unchecked(content: memoryview) -> None:
    pass


async def test_a_file_that_is_seen_is_mapped_and_not_asked_for(pool, file):
    with pool.loans.during(TASK) as lend:
        await pool.stop()
        assert bytes(await pool.borrowed().get(lend(file, None), unchecked)) == file.read_bytes()


@pytest.mark.parametrize("field", ["host", "device", "inode", "bytes"])
def test_a_file_is_seen_only_if_all_that_identifies_it_is_equal(file, field):
    with Loans(lambda *_: True).during(TASK) as lend:
        ref = lend(file, None)
    descriptor = seen(ref)
    assert descriptor is not None
    os.close(descriptor)
    setattr(ref, field, "another" if field == "host" else getattr(ref, field) + 1)
    assert seen(ref) is None


@pytest.mark.parametrize("what", ["another file", "a link to it", "a directory", "nothing"])
async def test_a_path_alone_is_not_trusted(pool, file, tmp_path, what):
    """The path leads to something else on the worker's host: it gets the content that was lent to it."""
    path = tmp_path / "there"
    if what == "another file":
        path.write_bytes(bytes(file.stat().st_size))
    elif what == "a link to it":
        path.symlink_to(file)
    elif what == "a directory":
        path.mkdir()
    with pool.loans.during(TASK) as lend:
        ref = lend(file, None)
        ref.path = str(path)
        assert bytes(await pool.borrowed().get(ref, unchecked)) == file.read_bytes()


async def test_ranges_are_read_and_written_wherever_they_are(pool, file):
    content = file.read_bytes()
    ranges = [slice(7, 9), slice(PIECE_BYTES - 3, 2 * PIECE_BYTES + 2), slice(0, 1)]
    wanted = b"".join(content[each] for each in ranges)

    def put(ranges, data):
        with file.open("r+b") as target:
            for each, part in placed(ranges, data):
                target.seek(each.start)
                target.write(part)

    with pool.loans.during(TASK) as lend:
        ref = elsewhere(lend(file, put))
        found = memoryview(bytearray(len(wanted)))
        await pool.borrowed().read(ref, ranges, found)
        assert bytes(found) == wanted
        await pool.borrowed().write(ref, ranges, memoryview(bytes(len(wanted))))
    expected = bytearray(content)
    for each in ranges:
        expected[each] = bytes(each.stop - each.start)
    assert file.read_bytes() == expected


@pytest.mark.parametrize(
    ("worker", "ticket", "running"),
    [
        ("learner-1", TICKET, TASK),
        (WORKER, "a guess", TASK),
        (WORKER, TICKET, "job/0/update/1"),
        (WORKER, TICKET, "other/0/update/0"),
    ],
)
async def test_only_the_worker_that_runs_the_task_gets_its_files(pool, file, worker, ticket, running):
    pool.running = {(running, WORKER, TICKET)}
    before = file.read_bytes()
    with pool.loans.during(TASK) as lend:
        ref, stranger = elsewhere(lend(file, partial(write_new, file, 10**9))), pool.borrowed(worker, ticket)
        with pytest.raises(PermissionDeniedError, match="runs no task that this file is lent for"):
            await stranger.get(ref, unchecked)
        with pytest.raises(PermissionDeniedError, match="runs no task that this file is lent for"):
            await stranger.write(ref, [slice(0, 1)], memoryview(b"x"))
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["", "lent", "../lent", "/etc/passwd", "path", "x" * 1000])
async def test_no_file_can_be_named_but_by_the_id_that_was_given_out(pool, file, name):
    with pool.loans.during(TASK) as lend:
        ref = elsewhere(lend(file, partial(write_new, file, 10**9)))
        ref.id = str(file) if name == "path" else name
        with pytest.raises(PermissionDeniedError):
            await pool.borrowed().read(ref, [slice(0, 1)], memoryview(bytearray(1)))
        with pytest.raises(PermissionDeniedError):
            await pool.borrowed().write(ref, [slice(0, 1)], memoryview(b"x"))


async def test_a_loan_ends_with_the_task(pool, file):
    with pool.loans.during(TASK) as lend:
        ref = elsewhere(lend(file, None))
    with pytest.raises(PermissionDeniedError):
        await pool.borrowed().get(ref, unchecked)


async def test_a_worker_that_loses_its_task_while_it_writes_writes_nothing(pool, file):
    before, answers = file.read_bytes(), iter([True, False])
    pool.loans._running = lambda *_: next(answers)
    with pool.loans.during(TASK) as lend:
        ref = elsewhere(lend(file, partial(write_new, file, 10**9)))
        with pytest.raises(PermissionDeniedError):
            await pool.borrowed().write(ref, [slice(0, 3)], memoryview(b"new"))
    assert file.read_bytes() == before


async def test_a_file_lent_for_reading_is_not_written(pool, file):
    with pool.loans.during(TASK) as lend, pytest.raises(PermissionDeniedError, match="lent for reading"):
        await pool.borrowed().write(elsewhere(lend(file, None)), [slice(0, 1)], memoryview(b"x"))


@pytest.mark.parametrize(
    "ranges",
    [
        [(2 * PIECE_BYTES, 6)],
        [(-1, 2)],
        [(0, -1)],
        [(0, PIECE_BYTES + 1)],
        [(0, PIECE_BYTES), (0, 1)],
        [(0, 1)] * (refs.MAX_RANGES + 1),
        [(2**62, 1)],
    ],
)
async def test_ranges_that_no_piece_has_are_refused(pool, file, ranges):
    made = [common_pb2.ByteRange(offset=offset, bytes=size) for offset, size in ranges]
    with pool.loans.during(TASK) as lend:
        piece = common_pb2.Piece(id=lend(file, None).id, worker=WORKER, ticket=TICKET, ranges=made)
        with pytest.raises(SpecError):
            await pool.peer.fetch("LearnerPoolService/ReadRef", piece, common_pb2.ReadRefHeader)


async def test_a_new_file_grows_in_order_and_to_its_limit(tmp_path):
    write = partial(write_new, tmp_path / "new", 6)
    write([slice(0, 3)], memoryview(b"abc"))
    write([slice(0, 3)], memoryview(b"abc"))  # sent again
    for wrong in (slice(4, 5), slice(3, 7)):
        with pytest.raises(SpecError, match="it grows in order, to 6 at most"):
            write([wrong], memoryview(bytes(wrong.stop - wrong.start)))
    write([slice(3, 6)], memoryview(b"def"))
    assert (tmp_path / "new").read_bytes() == b"abcdef"
    with pytest.raises(UnavailableError, match="No such file"):
        write_new(tmp_path / "missing" / "new", 6, [slice(0, 1)], memoryview(b"a"))


@pytest.fixture
def damage(monkeypatch) -> list[int]:
    """Flips a bit in each piece on its way to the worker, as often as the number says."""
    left, read = [0], Loans.read

    async def reading(loans, piece):
        async for frame in read(loans, piece):
            spoilt = left[0] > 0 and frame[0] == 0x12
            left[0] -= spoilt
            yield frame[:-1] + bytes([frame[-1] ^ 1]) if spoilt else frame

    monkeypatch.setattr(Loans, "read", reading)
    return left


async def test_a_piece_that_is_damaged_on_its_way_is_fetched_again(pool, file, damage):
    damage[0] = 3
    with pool.loans.during(TASK) as lend:
        assert (
            bytes(await pool.borrowed(patience_s=20.0).get(elsewhere(lend(file, None)), unchecked)) == file.read_bytes()
        )


async def test_pieces_that_are_always_damaged_are_never_used(pool, file, damage):
    damage[0] = 10**6
    with pool.loans.during(TASK) as lend, pytest.raises(UnreachableError, match="damaged on its way"):
        await pool.borrowed().get(elsewhere(lend(file, None)), unchecked)


async def test_what_is_damaged_on_its_way_to_the_file_is_not_written(pool, file):
    before = file.read_bytes()
    with pool.loans.during(TASK) as lend:
        ref = lend(file, partial(write_new, file, 10**9))
        made = [common_pb2.ByteRange(offset=0, bytes=3)]
        piece = common_pb2.Piece(id=ref.id, worker=WORKER, ticket=TICKET, ranges=made)
        header = common_pb2.WriteRefHeader(piece=piece, crc32=7)
        with pytest.raises(CorruptError, match="the checksum does not match"):
            await pool.peer.send("LearnerPoolService/WriteRef", header, [b"new"], common_pb2.WriteRefResponse)
    assert file.read_bytes() == before


async def test_content_that_is_not_what_was_lent_is_not_used(pool, file):
    def check(content: memoryview) -> None:
        raise CorruptError("not what was uploaded")

    with pool.loans.during(TASK) as lend, pytest.raises(CorruptError, match="not what was uploaded"):
        await pool.borrowed().get(elsewhere(lend(file, None)), check)


async def test_a_pool_that_is_away_for_a_moment_is_waited_for(pool, file):
    with pool.loans.during(TASK) as lend:
        ref, borrowed = elsewhere(lend(file, None)), pool.borrowed(patience_s=20.0)
        await pool.stop()
        fetching = asyncio.create_task(borrowed.get(ref, unchecked))
        await asyncio.wait([fetching], timeout=0.2)
        assert not fetching.done()
        await pool.start()
        assert bytes(await fetching) == file.read_bytes()


async def test_a_transfer_holds_a_few_pieces_in_memory_however_large_the_file_is(pool, tmp_path):
    large = tmp_path / "large"
    with large.open("wb") as target:
        target.truncate(40 * PIECE_BYTES)
    with pool.loans.during(TASK) as lend:
        ref = elsewhere(lend(large, lambda *_: None))
        tracemalloc.start()
        content = await pool.borrowed(patience_s=20.0).get(ref, unchecked)  # itself outside of what is traced
        await pool.borrowed(patience_s=20.0).write(ref, [slice(0, len(content))], content)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(content) == 40 * PIECE_BYTES
    assert peak < 3 * AT_ONCE * PIECE_BYTES  # both sides are in this process
