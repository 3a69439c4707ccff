"""Blobs on their way into the store: bounded, complete, and equal to their checksums."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from marless.errors import CorruptError, OverloadedError, SpecError
from marless.rpc import chunks
from services.param_store.keys import Part
from services.param_store.pieces import HASH_INLINE_BYTES


class Uploads:
    """Receives blobs into memory, within a bound on what all uploads hold together."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that publishes in progress hold."""
        return self._held_bytes

    @asynccontextmanager
    async def receive(self, stream: AsyncIterator[bytes], parts: Sequence[Part]) -> AsyncIterator[list[memoryview]]:
        """The bytes of each part, held for as long as the context.

        Raises CorruptError if they are not what the header declares, SpecError or OverloadedError if they are more
        than the bound allows at all, or now.
        """
        total = sum(part.size_bytes for part in parts)
        if min((part.size_bytes for part in parts), default=0) < 0 or total > self._limit_bytes:
            raise SpecError(
                f"a publish of {total} bytes; this store takes {self._limit_bytes} at most (--intake-bytes)"
            )
        if self._held_bytes + total > self._limit_bytes:
            raise OverloadedError(f"publishes in progress hold {self._held_bytes} bytes already; try again")
        self._held_bytes += total
        try:
            yield await _received(stream, parts, total)
        finally:
            self._held_bytes -= total


async def _received(stream: AsyncIterator[bytes], parts: Sequence[Part], total: int) -> list[memoryview]:
    buffer = memoryview(bytearray(total))
    await chunks.read_data(stream, buffer)
    blobs, at = [], 0
    for part in parts:
        blob = buffer[at : at + part.size_bytes]
        if await _digest(blob) != part.sha256:
            raise CorruptError(f"{part.name}: the bytes received do not match their sha256; send them again")
        blobs.append(blob)
        at += part.size_bytes
    return blobs


async def _digest(data: memoryview) -> bytes:
    """SHA-256, without holding up the event loop."""
    if len(data) <= HASH_INLINE_BYTES:
        return hashlib.sha256(data).digest()
    return (await asyncio.to_thread(hashlib.sha256, data)).digest()
