"""The content of an upload: what its header declares, its bytes as arrays, and whether these are a valid trajectory."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from marless.core.errors import CorruptError, MarlessError, shown
from marless.core.limits import MAX_ACTORS, MAX_TRAJECTORY_BYTES
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.rpc import chunks
from marless.rpc.requests import check_number
from marless.rpc.v1 import learner_pool_pb2 as pb

Header = pb.UploadHeader
_MOST_SIDES = 4
_DTYPES = {name: np.dtype(name) for name in ("float32", "int32", "uint8", "bool")}


def check_header(schema: TrajectorySchema, header: Header) -> None:
    """Raise CorruptError or SpecError unless the header declares the arrays of the job; bounded in time."""
    check_number("round", header.round)
    check_number("actor", header.index, 0, MAX_ACTORS - 1)
    most = len(schema.shapes(0))
    if len(header.arrays) > 2 * most:
        raise CorruptError(f"trajectory: the header has {len(header.arrays):,} arrays, the job declares {most}")
    for info in header.arrays:
        if len(info.shape) > _MOST_SIDES:
            raise CorruptError(
                f"trajectory: {shown(info.name)} has {len(info.shape):,} sides; {_MOST_SIDES} are possible"
            )
    schema.check_shapes({info.name: (info.dtype, tuple(info.shape)) for info in header.arrays})


def declared_bytes(header: Header) -> int:
    """Total bytes of the arrays in a header; raises CorruptError for an unknown dtype or an invalid size."""
    total, names = 0, set[str]()
    for info in header.arrays:
        name, dtype, shape = info.name, _DTYPES.get(info.dtype), tuple(info.shape)
        if dtype is None or any(side < 0 for side in shape):
            raise CorruptError(f"array {name!r}: {info.dtype}{list(shape)} is no array of a trajectory")
        total += dtype.itemsize * math.prod(shape)
        names.add(name)
    if len(names) != len(header.arrays):
        raise CorruptError("a trajectory names an array twice")
    if not 0 < total <= MAX_TRAJECTORY_BYTES:
        raise CorruptError(f"a trajectory of {total} bytes is refused; at most {MAX_TRAJECTORY_BYTES} are taken")
    return total


def views(header: Header, buffer: memoryview) -> Trajectory:
    """The arrays of an upload as views of its bytes, without a copy."""
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for info in header.arrays:
        dtype, shape = _DTYPES[info.dtype], tuple(info.shape)
        count = math.prod(shape)
        arrays[info.name] = np.frombuffer(buffer, dtype, count, offset).reshape(shape)
        offset += dtype.itemsize * count
    return Trajectory(arrays)


def check_bytes(schema: TrajectorySchema, header: Header, buffer: memoryview) -> None:
    """Raise CorruptError if the checksum does not match, or the arrays' values are not those of a valid trajectory.

    The header has passed `check_header`.
    """
    check_checksum(header, buffer)
    schema.check_values(views(header, buffer))


def check_checksum(header: Header, buffer: memoryview) -> None:
    """Raise CorruptError unless these are the bytes that the header was written for."""
    if chunks.checksum(header, [buffer]) != header.crc32:
        raise CorruptError(f"job {header.job}, round {header.round + 1}, actor {header.index}: checksum does not match")


def headers_of(uploads: Sequence[pb.SmallUpload]) -> list[Header | None]:
    """The header of each upload; None for bytes that are none."""
    found: list[Header | None] = []
    for each in uploads:
        try:
            found.append(Header.FromString(each.header))
        except DecodeError:
            found.append(None)
    return found


def valid_ones(
    schemas: Mapping[str, TrajectorySchema], headers: Sequence[Header | None], contents: Sequence[bytes]
) -> set[int]:
    """The positions of those uploads whose arrays, but not yet their checksums, have been found valid.

    Trajectories of a job that declare the same arrays are looked at together, which takes little longer than one of
    them. If any of them is not valid, none of these positions is returned, and each is to be checked by itself.
    """
    alike: defaultdict[tuple[str, bytes, int], list[int]] = defaultdict(list)
    for position, (header, content) in enumerate(zip(headers, contents, strict=True)):
        if header is not None and header.job in schemas:
            arrays = Header(arrays=header.arrays).SerializeToString()
            alike[header.job, arrays, len(content)].append(position)
    valid = set[int]()
    for (job, _, size), positions in alike.items():
        first = headers[positions[0]]
        if first is not None and _all_valid(schemas[job], first, size, [contents[each] for each in positions]):
            valid.update(positions)
    return valid


def _all_valid(schema: TrajectorySchema, header: Header, size: int, contents: Sequence[bytes]) -> bool:
    try:
        check_header(schema, header)
        if declared_bytes(header) != size:
            return False
    except MarlessError:
        return False
    rows = np.frombuffer(b"".join(contents), np.uint8).reshape(len(contents), size)
    stacked: dict[str, np.ndarray] = {}
    offset = 0
    for info in header.arrays:
        dtype, shape = _DTYPES[info.dtype], tuple(info.shape)
        end = offset + dtype.itemsize * math.prod(shape)
        # The bytes of one array lie apart, a piece in each upload; only a copy has them one after another.
        stacked[info.name] = np.frombuffer(rows[:, offset:end].tobytes(), dtype).reshape(len(contents), *shape)
        offset = end
    return schema.are_valid(stacked)
