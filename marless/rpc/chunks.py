"""Bulk transfers: a header message and raw bytes. The bytes come in pieces of at most 1 MiB, the first with the header.

On the wire each piece is a `Chunk` of common.proto, so that any gRPC client can take part. It is framed and parsed by
hand here, because protobuf's own `bytes` fields copy the data twice more (measured 2–4× slower at 64 MB).
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Protocol, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from marless.core.errors import CorruptError, SpecError, UnreachableError

PIECE_BYTES = 2**20
HEADER_BYTES = 2**20
STALL_S = 10.0
"""Seconds that each 1 MiB of a transfer may take; a slower one is aborted, because it occupies memory others need."""
TAKEN_S = 30.0
"""Seconds within which the reader of a download takes its next frame; of many readers, some are slow."""
_UNCHECKED = ("crc32", "epoch")
_HEADER_TAG = 0x0A  # field 1, length-delimited
_DATA_TAG = 0x12  # field 2, length-delimited
_NO_CHUNK = "a frame is not the Chunk message that is expected here"

Header = TypeVar("Header", bound=Message)
Frames: TypeAlias = AsyncIterator[bytes | memoryview]
"""Frames of a transfer that have not been read; one of them may be a view of the transfer's first message."""


class Writer(Protocol):
    """What a download is sent to: the context of its call."""

    async def write(self, message: bytes) -> None:
        """Send a frame; returns once it is on its way."""
        ...


def identity(frame: bytes) -> bytes:
    """The (de)serializer of bulk methods, whose frames are bytes already."""
    return frame


def frames(header: Message, buffers: Iterable[memoryview | bytes]) -> Iterator[bytes]:
    """The frames of one transfer: the header with the first piece of the data, then the other pieces."""
    return _frames(header_frame(header), buffers)


def data_frames(buffers: Iterable[memoryview | bytes]) -> Iterator[bytes]:
    """The data frames of one transfer; small buffers share a frame, and each byte is copied once."""
    return _frames(b"", buffers)


async def after(header: Message, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The frames of data that are framed already."""
    before = header_frame(header)
    async for frame in frames:
        yield before + frame
        before = b""
    if before:
        yield before


def header_frame(header: Message) -> bytes:
    """The frame of a transfer without data."""
    return _field(_HEADER_TAG, [header.SerializeToString()])


def _frames(before: bytes, buffers: Iterable[memoryview | bytes]) -> Iterator[bytes]:
    """The data frames of `buffers`, with `before` in front of the first one; only `before` if there are no data."""
    batch: list[memoryview] = []
    size = 0
    for buffer in buffers:
        # A memoryview of no bytes cannot be cast.
        view = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(b"")
        while size + len(view) > PIECE_BYTES:
            room = PIECE_BYTES - size
            yield _field(_DATA_TAG, [*batch, view[:room]], before)
            batch, size, view, before = [], 0, view[room:], b""
        batch.append(view)
        size += len(view)
    if size:
        yield _field(_DATA_TAG, batch, before)
    elif before:
        yield before


def checksum(header: Message, buffers: Iterable[memoryview | bytes]) -> int:
    """CRC-32 of a header and the data that follow it.

    Two header fields are left out: the checksum itself, and the epoch, which identifies the requester, not the content.
    """
    bare = type(header)()
    bare.CopyFrom(header)
    for field in _UNCHECKED:
        bare.ClearField(field)
    crc = zlib.crc32(bare.SerializeToString(deterministic=True))
    for buffer in buffers:
        crc = zlib.crc32(buffer, crc)
    return crc


async def write(writer: Writer, frame: bytes) -> None:
    """Send one frame of a download; raises UnreachableError if its reader does not take it in time (`TAKEN_S`)."""
    try:
        async with asyncio.timeout(TAKEN_S):
            await writer.write(frame)
    except TimeoutError:
        raise UnreachableError(f"no frame was taken within {TAKEN_S:g} s; read it again") from None


async def read_header(
    stream: AsyncIterator[bytes], kind: type[Header], *, within_s: float | None = None
) -> tuple[Header, Frames]:
    """Read the first frame of a transfer; returns its header, and the frames that the data are to be read from.

    Raises CorruptError unless it is a header of this type, SpecError if it is too long, UnreachableError if it does not
    arrive in time.
    """
    try:
        async with asyncio.timeout(within_s):
            first = await anext(stream, None)
    except TimeoutError:
        raise UnreachableError(f"no {kind.__name__} came within {within_s:g} s; send it again") from None
    try:
        if first is not None:
            # The rest of the first frame is a frame of data, or nothing.
            body, rest = _body(memoryview(first), _HEADER_TAG)
            if len(body) > HEADER_BYTES:
                raise SpecError(f"a header of {len(body):,} bytes; at most {HEADER_BYTES:,} are taken")
            return kind.FromString(bytes(body)), _with_first(rest, stream) if rest else stream
    except (DecodeError, CorruptError):
        pass
    raise CorruptError(f"the stream does not start with a {kind.__name__}")


async def _with_first(frame: memoryview, others: AsyncIterator[bytes]) -> Frames:
    yield frame
    async for each in others:
        yield each


async def read_data(stream: Frames, into: memoryview) -> None:
    """Fill `into` with the data frames that follow the header; raises CorruptError if there are fewer or more bytes,
    UnreachableError if they arrive too slowly (`STALL_S`).
    """
    at = counted = 0
    try:
        async with asyncio.timeout(STALL_S) as limit:
            async for frame in stream:
                body = data_of(frame)
                if at + len(body) > len(into):
                    raise CorruptError(f"the stream carries more than the {len(into)} bytes its header declares")
                into[at : at + len(body)] = body
                at += len(body)
                # Not at each frame: with a byte now and then, a sender could hold the memory of its transfer for ever.
                if at - counted >= PIECE_BYTES:
                    counted = at
                    limit.reschedule(asyncio.get_running_loop().time() + STALL_S)
    except TimeoutError:
        raise UnreachableError(f"the transfer stalled after {at} of {len(into)} bytes; send it again") from None
    if at != len(into):
        raise CorruptError(f"the stream ended after {at} of the {len(into)} bytes its header declares")


def data_of(frame: bytes | memoryview) -> memoryview:
    """The data of a frame without a header, as a view; raises CorruptError for anything but a Chunk of data alone."""
    body, rest = _body(memoryview(frame), _DATA_TAG)
    if rest:
        raise CorruptError(_NO_CHUNK)
    return body


def _body(view: memoryview, tag: int) -> tuple[memoryview, memoryview]:
    """The bytes of a field at the start of a message, and those after it; raises CorruptError if it is another one."""
    length = shift = 0
    # A frame is far smaller than 4 GiB, so its length takes five bytes at most; a longer one is not read on without
    # end.
    for at in range(1, min(len(view), 6)):
        length |= (view[at] & 0x7F) << shift
        shift += 7
        if view[at] < 0x80:
            end = at + 1 + length
            if view[0] == tag and end <= len(view):
                return view[at + 1 : end], view[end:]
            break
    raise CorruptError(_NO_CHUNK)


def _field(tag: int, parts: list[memoryview] | list[bytes], before: bytes = b"") -> bytes:
    length = sum(len(part) for part in parts)
    prefix = bytearray(before)
    prefix.append(tag)
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return b"".join([prefix, *parts])
