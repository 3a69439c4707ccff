"""Blobs on their way into the store: bounded, complete, and equal to their checksums."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from marless.errors import CorruptError, SpecError
from marless.rpc import chunks
from marless.rpc.room import Room
from services.param_store.keys import Part
from services.param_store.pieces import HASH_INLINE_BYTES

WAIT_S = 10.0
"""How long a publish waits for room; its bytes are still with its sender."""


class Uploads:
    """Receives blobs into memory, within a bound on what all uploads hold together."""

    def __init__(self, limit_bytes: int, *, wait_s: float = WAIT_S) -> None:
        self._room = Room("parameter store", "--intake-bytes", limit_bytes)
        self._wait_s = wait_s

    @property
    def held_bytes(self) -> int:
        """Bytes that publishes in progress hold."""
        return self._room.held_bytes

    @asynccontextmanager
    async def receive(
        self, stream: AsyncIterator[bytes], parts: Sequence[Part], job: str = ""
    ) -> AsyncIterator[list[memoryview]]:
        """The bytes of each part, held for as long as the context; jobs take turns where there is no room for all.

        Raises CorruptError if they are not what the header declares, SpecError if they are more than the bound
        allows at all, OverloadedError if there is no room for long, UnreachableError if they do not come.
        """
        total = sum(part.size_bytes for part in parts)
        if min((part.size_bytes for part in parts), default=0) < 0 or total > self._room.limit_bytes:
            raise SpecError(
                f"a publish of {total} bytes; this store takes {self._room.limit_bytes} at most (--intake-bytes)"
            )
        await self._room.take(job, total, wait_s=self._wait_s)
        try:
            yield await _received(stream, parts, total)
        finally:
            self._room.give_back(job, total)


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
