"""Receives the blobs of publishes into memory: bounded in bytes, complete, and checked against their SHA-256."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from marless.core.errors import CorruptError, SpecError
from marless.rpc import chunks
from marless.rpc.byte_budget import ByteBudget
from services.param_store.keys import BlobPart
from services.param_store.pieces import HASH_INLINE_BYTES

WAIT_S = 10.0
"""Seconds that a publish waits for room; until then, only its first message is read, with 1 MiB of its data at most."""


class BlobUploads:
    """Receives blobs into memory, within a bound on the total bytes of all publishes in progress."""

    def __init__(self, limit_bytes: int, *, wait_s: float = WAIT_S) -> None:
        self._budget = ByteBudget("parameter store", "--intake-bytes", limit_bytes)
        self._wait_s = wait_s

    @property
    def held_bytes(self) -> int:
        """Bytes that publishes in progress hold."""
        return self._budget.held_bytes

    @asynccontextmanager
    async def receive(
        self, stream: chunks.Frames, parts: Sequence[BlobPart], job: str = ""
    ) -> AsyncIterator[list[memoryview]]:
        """Receive the bytes of each part, and hold them while the context lasts; jobs take turns if room is short.

        Raises CorruptError if they do not match their checksums, SpecError if they exceed the bound by themselves,
        OverloadedError if there is no room in time, UnreachableError if the stream stalls.
        """
        total = sum(part.size_bytes for part in parts)
        if min((part.size_bytes for part in parts), default=0) < 0 or total > self._budget.limit_bytes:
            raise SpecError(
                f"a publish of {total} bytes; this store accepts {self._budget.limit_bytes} at most (--intake-bytes)"
            )
        async with self.room(job, total):
            yield await _received(stream, parts, total)

    @asynccontextmanager
    async def room(self, job: str, size_bytes: int) -> AsyncIterator[None]:
        """Hold so many bytes while the context lasts; jobs take turns. Raises OverloadedError if there is no room."""
        await self._budget.take(job, size_bytes, wait_s=self._wait_s)
        try:
            yield
        finally:
            self._budget.release(job, size_bytes)

    @property
    def limit_bytes(self) -> int:
        """The bound on the total."""
        return self._budget.limit_bytes


async def _received(stream: chunks.Frames, parts: Sequence[BlobPart], total: int) -> list[memoryview]:
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
    """SHA-256 of `data`, on another thread if it is large."""
    if len(data) <= HASH_INLINE_BYTES:
        return hashlib.sha256(data).digest()
    return (await asyncio.to_thread(hashlib.sha256, data)).digest()
