"""Files lent by reference: a service lends a file to the worker that runs a task; the worker maps it, or transfers it.

A worker on the same host, which sees the very file (same kernel, device, inode and size), maps it at no cost. Any other
worker reads and writes pieces of it over gRPC, each with a checksum. The file's path is never sent back: a piece names
the file by a random id, which ends with the task, and is served to the worker that runs the task and to no other.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import platform
import secrets
import uuid
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from marless.core import private_files
from marless.core.errors import (
    CorruptError,
    PermissionDeniedError,
    SpecError,
    UnavailableError,
    UnreachableError,
    shown,
)
from marless.rpc import chunks
from marless.rpc.client import Peer
from marless.rpc.concurrency import gather, retry, to_the_end
from marless.rpc.requests import check_number
from marless.rpc.v1 import common_pb2

PIECE_BYTES = 4 * 2**20
"""Largest piece: what a transfer holds in memory on each side, and repeats if it fails."""
AT_ONCE = 4
"""Pieces that one task transfers at the same time."""
MAX_RANGES = 4096
"""Byte ranges of one piece."""
PATIENCE_S = 20.0
_TIMEOUT_S = 60.0
Ref = common_pb2.Ref
Ranges = Sequence[slice]
"""Bytes of a file: from `start` to before `stop`."""
Write = Callable[[Ranges, memoryview], None]
"""Writes the bytes of ranges, one after another in the memoryview, into a lent file."""


class RunsTask(Protocol):
    """Tells whether a worker with this ticket runs a task now."""

    def __call__(self, task: str, worker: str, ticket: str) -> bool:
        """True if it does."""
        ...


@dataclass(frozen=True)
class _Loan:
    task: str
    path: Path
    write: Write | None
    """None: the file is only read."""
    pieces: asyncio.Semaphore
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class Loans:
    """The files that a service has lent to the workers of its tasks."""

    def __init__(self, running: RunsTask) -> None:
        self._running = running
        self._loans: dict[str, _Loan] = {}

    @contextmanager
    def during(self, task: str) -> Iterator[Callable[[Path, Write | None], Ref]]:
        """A function that lends a file to whichever worker runs the task, until the context ends.

        Its second argument writes into the file; None: the worker may only read it. A file that does not exist yet is
        named by a Ref that nobody can map.
        """
        lent: list[str] = []
        pieces = asyncio.Semaphore(AT_ONCE)

        def lend(path: Path, write: Write | None = None) -> Ref:
            ref = Ref(id=secrets.token_urlsafe(24))
            with suppress(FileNotFoundError):
                status = path.lstat()
                ref.bytes, ref.device, ref.inode = status.st_size, status.st_dev, status.st_ino
                ref.host, ref.path = _host(), str(path)
            self._loans[ref.id] = _Loan(task, path, write, pieces)
            lent.append(ref.id)
            return ref

        try:
            yield lend
        finally:
            for each in lent:
                del self._loans[each]

    async def read(self, piece: common_pb2.Piece) -> AsyncIterator[bytes]:
        """The frames of a piece, for ReadRef; raises PermissionDeniedError, SpecError, UnavailableError."""
        loan, ranges = self._loan(piece), _ranges(piece)
        # Held until the last frame was taken, because until then the whole piece is in memory.
        async with loan.pieces:
            data, crc32 = await asyncio.to_thread(_read, loan.path, ranges)
            for frame in chunks.frames(common_pb2.ReadRefHeader(crc32=crc32), [memoryview(data)]):
                yield frame

    async def write(self, stream: AsyncIterator[bytes]) -> None:
        """Receive a piece, for WriteRef; raises PermissionDeniedError, SpecError, CorruptError, UnavailableError."""
        header, frames = await chunks.read_header(stream, common_pb2.WriteRefHeader, within_s=chunks.STALL_S)
        loan, ranges = self._loan(header.piece), _ranges(header.piece)
        if loan.write is None:
            raise PermissionDeniedError("this file is lent for reading")
        async with loan.pieces:
            # Received before the lock is taken, so that a slow sender does not keep others from writing.
            data = memoryview(bytearray(_total(ranges)))
            await chunks.read_data(frames, data)
            _check(zlib.crc32(data), header.crc32)
            async with loan.writing:
                self._loan(header.piece)  # another worker may run the task by now
                # If the caller goes away meanwhile, the lock is still held until the thread has stopped writing.
                await to_the_end(loan.write, ranges, data)

    def _loan(self, piece: common_pb2.Piece) -> _Loan:
        loan = self._loans.get(piece.id)
        if loan is None or not self._running(loan.task, piece.worker, piece.ticket):
            raise PermissionDeniedError(f"worker {shown(piece.worker)} runs no task that this file is lent for")
        return loan


class Borrowed:
    """The worker's side: files that the service behind `peer` lends to this worker.

    Transfers are retried while the service is unreachable, and where a piece arrives damaged, for at most `patience_s`
    seconds; then UnreachableError is raised.
    """

    def __init__(
        self, peer: Peer, service: str, worker: str, ticket: Callable[[], str], *, patience_s: float = PATIENCE_S
    ) -> None:
        self._peer = peer
        self._service = service
        self._worker = worker
        self._ticket = ticket
        self._patience_s = patience_s
        # As many as the service serves of one task; further ones would only wait there.
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def get(self, ref: Ref, check: Callable[[memoryview], None]) -> memoryview:
        """The content of a file: mapped if this process sees it, else fetched into memory and checked in a thread."""
        if (descriptor := seen(ref)) is not None:
            try:
                return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
            finally:
                os.close(descriptor)
        content = memoryview(mmap.mmap(-1, ref.bytes))
        await self.read(ref, [slice(0, ref.bytes)], content)
        await asyncio.to_thread(check, content)
        return content

    async def read(self, ref: Ref, ranges: Ranges, into: memoryview) -> None:
        """Fetch ranges of a file, one after another into `into`, a few pieces at a time."""
        await gather(self._read(ref, part, into[at : at + _total(part)]) for at, part in _pieces(ranges))

    async def write(self, ref: Ref, ranges: Ranges, content: memoryview) -> None:
        """Write ranges of a file; their bytes are one after another in `content`."""
        for at, part in _pieces(ranges):  # in order, because a new file grows from its beginning
            await self._write(ref, part, content[at : at + _total(part)])

    async def _read(self, ref: Ref, ranges: Ranges, into: memoryview) -> None:
        async def attempt() -> None:
            header = await self._peer.receive(
                f"{self._service}/ReadRef", self._piece(ref, ranges), common_pb2.ReadRefHeader, into, _TIMEOUT_S
            )
            _check(zlib.crc32(into), header.crc32)

        await self._retried(attempt)

    async def _write(self, ref: Ref, ranges: Ranges, content: memoryview) -> None:
        header = common_pb2.WriteRefHeader(crc32=zlib.crc32(content))

        async def attempt() -> None:
            header.piece.CopyFrom(self._piece(ref, ranges))
            method, response = f"{self._service}/WriteRef", common_pb2.WriteRefResponse
            await self._peer.send(method, header, [content], response, timeout_s=_TIMEOUT_S)

        await self._retried(attempt)

    async def _retried(self, attempt: Callable[[], Coroutine[Any, Any, None]]) -> None:  # Any: asyncio's own
        async def intact() -> None:
            try:
                await attempt()
            except CorruptError as error:
                # `retry` repeats this error only: what was damaged on its way is whole where it comes from.
                raise UnreachableError(f"a piece of a file was damaged on its way ({error})") from None

        async with self._at_once:
            await retry(intact, patience_s=self._patience_s)

    def _piece(self, ref: Ref, ranges: Ranges) -> common_pb2.Piece:
        made = [common_pb2.ByteRange(offset=each.start, bytes=each.stop - each.start) for each in ranges]
        return common_pb2.Piece(id=ref.id, worker=self._worker, ticket=self._ticket(), ranges=made)


def _ranges(piece: common_pb2.Piece) -> list[slice]:
    """The ranges of a piece; raises SpecError if they are too many, too large or negative."""
    check_number("the number of ranges", len(piece.ranges), 0, MAX_RANGES)
    for each in piece.ranges:
        check_number("the offset of a range", each.offset)
        check_number("the bytes of a range", each.bytes, 0, PIECE_BYTES)
    ranges = [slice(each.offset, each.offset + each.bytes) for each in piece.ranges]
    check_number("the bytes of a piece", _total(ranges), 0, PIECE_BYTES)
    return ranges


def _total(ranges: Ranges) -> int:
    return sum(each.stop - each.start for each in ranges)


def _pieces(ranges: Ranges) -> Iterator[tuple[int, list[slice]]]:
    """Ranges in pieces within the limits, each with the number of bytes before it."""
    before, part = 0, list[slice]()
    for each in ranges:
        at = each.start
        while at < each.stop:
            if len(part) == MAX_RANGES or _total(part) == PIECE_BYTES:
                yield before, part
                before, part = before + _total(part), []
            stop = min(each.stop, at + PIECE_BYTES - _total(part))
            part.append(slice(at, stop))
            at = stop
    if part:
        yield before, part


def placed(ranges: Ranges, data: memoryview) -> Iterator[tuple[slice, memoryview]]:
    """Each range with its bytes of `data`, in which the ranges' bytes are one after another."""
    at = 0
    for each in ranges:
        yield each, data[at : at + each.stop - each.start]
        at += each.stop - each.start


def _check(crc32: int, declared: int) -> None:
    if crc32 != declared:
        raise CorruptError("the checksum does not match")


def is_seen(ref: Ref) -> bool:
    """True if this process sees the very file that a reference names."""
    descriptor = seen(ref)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def seen(ref: Ref) -> int | None:
    """A descriptor for reading of the very file that a reference names; None if this process does not see that file."""
    if not ref.path or ref.host != _host():
        return None
    try:
        descriptor = private_files.open_own(Path(ref.path), os.O_RDONLY)
    except OSError:
        return None
    # Of what was opened, not of the path, at which another file may lie by now.
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino, status.st_size) == (ref.device, ref.inode, ref.bytes):
        return descriptor
    os.close(descriptor)
    return None


@cache
def _host() -> str:
    """Identifies the running kernel, within which the numbers of devices and inodes are unique."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        return f"{platform.node()}/{uuid.getnode()}"


def _read(path: Path, ranges: Ranges) -> tuple[bytearray, int]:
    """The bytes of ranges of a file, and their checksum; raises SpecError for ranges beyond its end."""
    content = bytearray(_total(ranges))
    try:
        descriptor = private_files.open_own(path, os.O_RDONLY)
        try:
            for each, data in placed(ranges, memoryview(content)):
                if os.preadv(descriptor, [data], each.start) != len(data):
                    raise SpecError(f"the file ends before byte {each.stop:,}")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnavailableError(f"a lent file cannot be read: {error.strerror}") from None
    return content, zlib.crc32(content)


def write_new(path: Path, limit: int, ranges: Ranges, content: memoryview) -> None:
    """A `Write` for a new file, which grows from its beginning, up to `limit` bytes.

    Raises SpecError for bytes elsewhere, UnavailableError if the disk is full.
    """
    try:
        descriptor = private_files.open_own(path, os.O_WRONLY | os.O_CREAT)
        try:
            for each, data in placed(ranges, content):
                if each.start > os.fstat(descriptor).st_size or each.stop > limit:
                    raise SpecError(f"bytes up to {each.stop:,} of a new file; it grows in order, to {limit:,} at most")
                # On a full disk this raises an error, where `pwrite` could write a part of the bytes and return their
                # number.
                os.posix_fallocate(descriptor, each.start, len(data))
                os.pwrite(descriptor, data, each.start)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UnavailableError(f"spool {path.parent}: {error.strerror}; give it room") from None
