"""The bytes of versions: as pieces of bounded size in Redis, as frames of recent reads, and as uploads in memory.

Bytes are checked against their SHA-256 wherever they come in; what is kept is known by its checksums, so that it can
never be that of something else.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from marless.core.errors import CorruptError, SpecError
from marless.rpc import chunks
from marless.rpc.admission import ByteBudget

PIECE_BYTES = 8 * 2**20
"""Longest value of a field: Redis serves no other client while it copies one."""
HASH_INLINE_BYTES = 2**20
"""Larger values are hashed on another thread; hashing a megabyte takes half a millisecond."""
SHARED_BYTES = 64 * 2**20
"""Bytes of frames that are kept, those read last; a read of more than half of it is not shared."""
Read = Callable[[], AsyncIterator[list[bytes]]]
"""Reads the bytes of some parts, in order, and checks them."""
WAIT_S = 10.0
"""Seconds that a publish waits for room; until then, only its first message is read, with 1 MiB of its data at most."""


@dataclass(frozen=True)
class BlobPart:
    """One blob of a version."""

    name: str
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class Piece:
    """One field of a version: at most `PIECE_BYTES` of one part."""

    key: str
    part: BlobPart
    index: int

    @property
    def field(self) -> str:
        """Name of its field in the version's hash."""
        return f"{self.part.name}:{self.index}"

    @property
    def start(self) -> int:
        """Offset of its first byte in the part."""
        return self.index * PIECE_BYTES

    @property
    def size_bytes(self) -> int:
        """Length of the piece in bytes."""
        return min(PIECE_BYTES, self.part.size_bytes - self.start)


def pieces_of(key: str, part: BlobPart) -> list[Piece]:
    """All pieces of one part."""
    return [Piece(key, part, index) for index in range(-(-part.size_bytes // PIECE_BYTES))]


def batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Group pieces, in order, into batches of at most `PIECE_BYTES` bytes."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        if batch and size + piece.size_bytes > PIECE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += piece.size_bytes
    if batch:
        yield batch


class Checksums:
    """Verifies the SHA-256 of parts from their pieces, which must come in order."""

    def __init__(self) -> None:
        self._running = hashlib.sha256()

    async def check(self, batch: Sequence[Piece], values: Sequence[bytes]) -> None:
        """Add pieces and their bytes; raises CorruptError at the end of a part whose digest does not match."""
        if sum(map(len, values)) <= HASH_INLINE_BYTES:
            self._check(batch, values)
        else:
            await asyncio.to_thread(self._check, batch, values)

    def _check(self, batch: Sequence[Piece], values: Sequence[bytes]) -> None:
        for piece, value in zip(batch, values, strict=True):
            self._running.update(value)
            if piece.start + piece.size_bytes == piece.part.size_bytes:
                digest, self._running = self._running.digest(), hashlib.sha256()
                if digest != piece.part.sha256:
                    raise CorruptError(
                        f"{piece.part.name!r} of {piece.key} is not what was published; use another version"
                    )


class Published:
    """The parts that were published last, so that they need not be read from Redis, and checked, again.

    They are known by their checksums, so they can never be those of something else.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        self._kept_bytes = 0

    def add(self, part: BlobPart, data: memoryview) -> None:
        """Keep a copy of a part of one piece, whose bytes match its checksum; the first ones added make room for it."""
        if part.sha256 in self._kept or part.size_bytes > PIECE_BYTES:
            return
        # A view would keep the whole publish in memory.
        self._kept[part.sha256] = bytes(data)
        self._kept_bytes += len(data)
        while self._kept_bytes > self._limit_bytes:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])

    def get(self, part: BlobPart) -> bytes | None:
        """The bytes of a part, if they are kept."""
        return self._kept.get(part.sha256)


class SharedFrames:
    """Frames by the checksums of the parts that they hold, so that they can never be those of something else."""

    def __init__(self, limit_bytes: int = SHARED_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[tuple[bytes, ...], list[bytes]] = OrderedDict()
        self.kept_bytes = 0
        """Bytes of the frames that are kept."""
        self._reading: dict[Hashable, asyncio.Task[list[bytes]]] = {}

    async def of(self, what: Hashable, parts: Sequence[BlobPart], read: Read) -> AsyncIterator[bytes]:
        """Stream the data frames of these parts; `read` is called unless they are kept, or being read already.

        Raises the errors of `read`, which are the same for all readers of the same versions, `what`.
        """
        key = tuple(part.sha256 for part in parts)
        if sum(part.size_bytes for part in parts) > self._limit_bytes // 2:
            async for batch in read():
                for frame in chunks.data_frames(batch):
                    yield frame
            return
        if (frames := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
        else:
            if (reading := self._reading.get(what)) is None:
                reading = self._reading[what] = asyncio.create_task(self._read(key, read))
                reading.add_done_callback(lambda task: self._ended(what, task))
            frames = await asyncio.shield(reading)  # for the others that wait for it, when the caller goes away
        for frame in frames:
            yield frame

    def _ended(self, what: Hashable, reading: asyncio.Task[list[bytes]]) -> None:
        del self._reading[what]
        if not reading.cancelled():
            reading.exception()  # all who waited for it may be gone

    async def _read(self, key: tuple[bytes, ...], read: Read) -> list[bytes]:
        frames = [frame async for batch in read() for frame in chunks.data_frames(batch)]
        # A read of other versions may have put the same content there meanwhile.
        if key not in self._kept:
            self.kept_bytes += sum(map(len, frames))
        self._kept[key] = frames
        while self.kept_bytes > self._limit_bytes:
            self.kept_bytes -= sum(map(len, self._kept.popitem(last=False)[1]))
        return frames


class BlobUploads:
    """Receives blobs into memory, within a bound on the total bytes of all publishes in progress."""

    def __init__(self, limit_bytes: int, *, wait_s: float = WAIT_S) -> None:
        self.budget = ByteBudget("parameter store", "--intake-bytes", limit_bytes)
        """What publishes and aggregations in progress hold."""
        self._wait_s = wait_s

    @asynccontextmanager
    async def receive(
        self, stream: chunks.Frames, parts: Sequence[BlobPart], job: str = ""
    ) -> AsyncIterator[list[memoryview]]:
        """Receive the bytes of each part, and hold them while the context lasts; jobs take turns if room is short.

        Raises CorruptError if they do not match their checksums, SpecError if they exceed the bound by themselves,
        OverloadedError if there is no room in time, UnreachableError if the stream stalls.
        """
        total = sum(part.size_bytes for part in parts)
        if min((part.size_bytes for part in parts), default=0) < 0 or total > self.budget.limit_bytes:
            raise SpecError(
                f"a publish of {total} bytes; this store accepts {self.budget.limit_bytes} at most (--intake-bytes)"
            )
        async with self.room(job, total):
            buffer = memoryview(bytearray(total))
            await chunks.read_data(stream, buffer)
            blobs, at = [], 0
            for part in parts:
                blob = buffer[at : at + part.size_bytes]
                on_this_thread = len(blob) <= HASH_INLINE_BYTES
                hashed = hashlib.sha256(blob) if on_this_thread else await asyncio.to_thread(hashlib.sha256, blob)
                if hashed.digest() != part.sha256:
                    raise CorruptError(f"{part.name}: the bytes received do not match their sha256; send them again")
                blobs.append(blob)
                at += part.size_bytes
            yield blobs

    @asynccontextmanager
    async def room(self, job: str, size_bytes: int) -> AsyncIterator[None]:
        """Hold so many bytes while the context lasts; jobs take turns. Raises OverloadedError if there is no room."""
        await self.budget.take(job, size_bytes, wait_s=self._wait_s)
        try:
            yield
        finally:
            self.budget.release(job, size_bytes)
