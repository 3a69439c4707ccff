"""Blobs as pieces of bounded size, as they are stored in Redis: batches to read together, checks of checksums, and the
parts that were published last, which need not be read.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from marless.core.errors import CorruptError
from services.param_store.keys import PIECE_BYTES, BlobPart

HASH_INLINE_BYTES = 2**20
"""Larger values are hashed on another thread; hashing a megabyte takes half a millisecond."""


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
