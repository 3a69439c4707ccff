"""The frames of recent reads: what many callers read at once is read from Redis, checked and framed once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence

from marless.rpc import chunks
from services.param_store.keys import BlobPart

SHARED_BYTES = 64 * 2**20
"""Bytes of frames that are kept, those read last; a read of more than half of it is not shared."""
Read = Callable[[], AsyncIterator[list[bytes]]]
"""Reads the bytes of some parts, in order, and checks them."""


class SharedFrames:
    """Frames by the checksums of the parts that they hold, so that they can never be those of something else."""

    def __init__(self, limit_bytes: int = SHARED_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[tuple[bytes, ...], list[bytes]] = OrderedDict()
        self._kept_bytes = 0
        self._reading: dict[Hashable, asyncio.Task[list[bytes]]] = {}

    @property
    def kept_bytes(self) -> int:
        """Bytes of the frames that are kept."""
        return self._kept_bytes

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
            frames = await self._read_once(what, key, read)
        for frame in frames:
            yield frame

    async def _read_once(self, what: Hashable, key: tuple[bytes, ...], read: Read) -> list[bytes]:
        if (reading := self._reading.get(what)) is None:
            reading = self._reading[what] = asyncio.create_task(self._read(key, read))
            reading.add_done_callback(lambda task: self._ended(what, task))
        return await asyncio.shield(reading)  # for the others that wait for it, when the caller goes away

    def _ended(self, what: Hashable, reading: asyncio.Task[list[bytes]]) -> None:
        del self._reading[what]
        if not reading.cancelled():
            reading.exception()  # all who waited for it may be gone

    async def _read(self, key: tuple[bytes, ...], read: Read) -> list[bytes]:
        frames = [frame async for batch in read() for frame in chunks.data_frames(batch)]
        # A read of other versions may have put the same content there meanwhile.
        if key not in self._kept:
            self._kept_bytes += sum(map(len, frames))
        self._kept[key] = frames
        while self._kept_bytes > self._limit_bytes:
            self._kept_bytes -= sum(map(len, self._kept.popitem(last=False)[1]))
        return frames
