"""Bulk transfers: frames, headers, arrays, and the two services that take them in."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError

from marless.fleet.handover import Handover
from marless.fleet.launchers.base import WorkerProgram
from marless.fleet.launchers.hosts.pool import Hosts
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.rpc import chunks
from marless.rpc.refs import Loans, Ranges
from marless.rpc.requests import message
from marless.rpc.v1 import common_pb2, hosts_pb2, learner_pool_pb2, param_store_pb2
from marless.services.learner_pool.content import check_header, declared_bytes
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from marless.services.param_store.blobs import BlobUploads
from marless.services.param_store.servicer import _parts, _writes
from tests.fuzz import scratch
from tests.fuzz.choices import Choices, document, raw, text

SCHEMA = TrajectorySchema(
    EnvSpaces(
        (AgentClass("a", ("a", "b"), 2, Discrete(3)), AgentClass("c", ("c",), 1, Box((0.0,), (1.0,)))),
        state_size=2,
        max_steps=5,
        masks=True,
        deaths=True,
    ),
    steps=2,
    batch=2,
    with_state=True,
)
ROOM_BYTES = 2**16
_HOST_SAYS = (
    hosts_pb2.HostMessage(
        hello=hosts_pb2.HostHello(host="i-1", ticket="t", slots=2, vcpus=4.0, version=version("marless"))
    ),
    hosts_pb2.HostMessage(started=hosts_pb2.WorkerStarted(launch=1, outcome="accepted")),
    hosts_pb2.HostMessage(ended=hosts_pb2.WorkerEnded(launch=1, how="exit code 0")),
    hosts_pb2.HostMessage(notice=hosts_pb2.HostNotice(why="spot", seconds=120.0)),
)
_DTYPES = ("float32", "int32", "bool", "float64", "object", "V8", "", "float32\x00", "O", "int8")


def frame(choices: Choices) -> None:
    """One frame: a tag, a length, a body."""
    body = bytes(choices.below(4)) + bytes(choices.pick((0, 0, 1, 2, 126, 127, 128, 129, 300)))
    made = chunks._field(choices.pick((0x0A, 0x12, 0x12, 0x00, 0x1A, 0xFF)), [body])
    there = chunks.data_of(raw(made, choices))
    assert len(there) < 2**20


def _sent(header: bytes, data: bytes, choices: Choices) -> list[bytes]:
    """A transfer with pieces of any size, one of them maybe lost, doubled, empty or broken."""
    at = choices.below(len(data) + 1)
    frames = [chunks._field(0x0A, [header]), chunks._field(0x12, [data[:at]]), chunks._field(0x12, [data[at:]])]
    if choices.sometimes(2):  # the header comes with the first piece
        frames = [chunks._field(0x12, [data[:at]], frames[0]), frames[2]]
    what, which = choices.below(12), choices.below(len(frames))
    if what == 1:
        del frames[which]
    elif what == 2:
        frames.insert(which, frames[choices.below(len(frames))])
    elif what == 3:
        frames.insert(which, chunks._field(0x12, [b""]))
    elif what == 4:
        frames[which] = raw(frames[which], choices)
    return frames


def transfer(choices: Choices) -> None:
    """Exactly the bytes that were declared arrive, or CorruptError."""
    size = choices.below(64)
    header = learner_pool_pb2.UploadHeader(job="job", index=choices.below(3))
    declared = max(size + choices.pick((0, 0, 0, 1, -1)), 0)

    async def receive() -> None:
        frames = scratch.stream(_sent(header.SerializeToString(), bytes(size), choices))
        _, rest = await chunks.read_header(frames, learner_pool_pb2.UploadHeader)
        await chunks.read_data(rest, memoryview(bytearray(declared)))

    scratch.wait(receive())


@cache
def _valid_arrays(rows: int) -> dict[str, np.ndarray]:
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in SCHEMA.shapes(rows).items()}
    arrays["cut"][:] = True
    arrays["boot_index"][:] = range(rows)
    return arrays


def _arrays(choices: Choices) -> dict[str, np.ndarray]:
    """Arrays of a trajectory, of which up to three are wrong in dtype, shape, value or name."""
    arrays = dict(_valid_arrays(choices.below(4)))
    for _ in range(choices.below(4)):
        name, what = choices.pick(sorted(arrays)), choices.below(6)
        array = arrays[name]
        if what == 0:
            array = np.zeros_like(array).astype(choices.pick(("float32", "int32", "bool")))
        elif what == 1:
            array = np.zeros([max(side + choices.pick((0, 1, -1)), 0) for side in array.shape], array.dtype)
        elif what == 2 and array.size:
            array = array.copy()
            array.reshape(-1).view(np.uint8)[choices.below(array.nbytes)] = choices.byte()
        elif what == 3:
            arrays.pop(name)
            name = choices.pick(("obs/9", "", "cut", "state", "action/-1", "x" * 500))
        elif what == 4:
            array = array.reshape(-1)
        elif array.dtype == np.float32 and array.size:
            array = array.copy()
            array.reshape(-1)[choices.below(array.size)] = choices.pick((np.nan, np.inf, -np.inf, 1e38, -0.0))
        arrays[name] = array
        if not arrays:
            break
    return arrays


def trajectory(choices: Choices) -> None:
    """What is accepted can be trained on: no value that is not finite, no action that there is not."""
    arrays = _arrays(choices)
    SCHEMA.check(Trajectory(arrays))
    for array in arrays.values():
        assert array.dtype.kind != "f" or np.isfinite(array).all()
    assert arrays["action/0"].min() >= 0
    assert arrays["action/0"].max() < 3


def _declared(arrays: dict[str, np.ndarray]) -> learner_pool_pb2.UploadHeader:
    header = learner_pool_pb2.UploadHeader(job="job", epoch=1)
    for name, array in arrays.items():
        header.arrays.add(name=name, dtype=array.dtype.name, shape=array.shape)
    return header


@cache
def _valid_header(rows: int) -> bytes:
    return _declared(_valid_arrays(rows)).SerializeToString()


def _changed(header: learner_pool_pb2.UploadHeader, choices: Choices) -> learner_pool_pb2.UploadHeader:
    if choices.sometimes(4):
        header.job = choices.pick(("", "other", "j" * 300, "²"))
    if choices.sometimes(4):
        header.round = choices.pick((1, -1, 2**31 - 1))
    if choices.sometimes(4):
        header.index = choices.pick((1, 4095, 2**31 - 1, -1))
    if choices.sometimes(4):
        header.epoch = choices.pick((0, 2, 2**63 - 1, -1))
    for _ in range(choices.below(3)):
        info = choices.pick(header.arrays)
        what = choices.below(4)
        if what == 0:
            info.dtype = choices.pick(_DTYPES)
        elif what == 1:
            info.shape.append(choices.number())
        elif what == 2 and info.shape:
            info.shape[choices.below(len(info.shape))] = choices.number()
        else:
            header.arrays.add().CopyFrom(info)
    return header


def upload_header(choices: Choices) -> None:
    """A header is parsed, and its size added up, before any of its bytes are taken."""
    header = learner_pool_pb2.UploadHeader.FromString(_valid_header(choices.below(3)))
    try:
        header = learner_pool_pb2.UploadHeader.FromString(raw(_changed(header, choices).SerializeToString(), choices))
    except DecodeError:
        return  # as in `chunks.read_header`, which "transfer" tries
    check_header(SCHEMA, header)
    assert 0 < declared_bytes(header) <= 512 * 2**20


def lent(choices: Choices) -> None:
    """A piece of a lent file is written as its header says, by the worker that runs the task, or not at all."""
    data = bytes(choices.below(40))

    def write(ranges: Ranges, content: memoryview) -> None:
        assert bytes(content) == data[: len(content)]
        assert sum(each.stop - each.start for each in ranges) == len(content)
        assert all(0 <= each.start <= each.stop for each in ranges)

    async def receive() -> None:
        loans = Loans(lambda task, worker, ticket: (worker, ticket) == ("w", "t"))
        with loans.during("task") as lend:
            ref = lend(Path("/nowhere"), write if choices.below(4) else None)
            piece = common_pb2.Piece(id=choices.pick((ref.id, ref.id, "")), worker="w", ticket="t")
            for _ in range(choices.below(3)):
                piece.ranges.add(offset=choices.number(), bytes=choices.pick((len(data), 0, choices.number())))
            header = common_pb2.WriteRefHeader(piece=piece, crc32=zlib.crc32(data))
            sent = raw(header.SerializeToString(), choices) if choices.below(4) == 0 else header.SerializeToString()
            await loans.write(scratch.stream(_sent(sent, data, choices)))

    scratch.wait(receive())


@cache
def _buffer() -> TrajectoryBuffer:
    return TrajectoryBuffer(scratch.directory(), ROOM_BYTES)


def upload(choices: Choices) -> None:
    """A whole upload, with a right checksum most of the time."""
    buffer = _buffer()
    buffer.close("job")
    buffer.open("job", SCHEMA, epoch=1, round_=0)
    arrays = _arrays(choices)
    header = _changed(_declared(arrays), choices)
    data = b"".join(array.tobytes() for array in arrays.values())
    header.crc32 = 7 if choices.sometimes(16) else chunks.checksum(header, [data])
    scratch.wait(buffer.receive(scratch.stream(_sent(header.SerializeToString(), data, choices))))


@cache
def _uploads() -> BlobUploads:
    return BlobUploads(ROOM_BYTES, wait_s=0.01)


def publish(choices: Choices) -> None:
    """The header of a publish becomes parts; the bytes are those whose sha256 it names."""
    sizes = [choices.below(40) for _ in range(1 + choices.below(3))]
    data = bytes(sum(sizes))
    header = param_store_pb2.PublishHeader(job="job", epoch=choices.number(), round=choices.number())
    policy = header.policies.add(policy="a", expected=abs(choices.number()), req_id="r")
    for size in sizes:
        blob = policy.blobs.add(part=choices.pick(("acting", "learning", "", "x")), bytes=size)
        blob.sha256 = hashlib.sha256(bytes(size)).digest()
        if choices.sometimes(8):
            blob.bytes = choices.number()
        if choices.sometimes(8):
            blob.sha256 = choices.pick((b"", b"\x00", b"x" * 300))
    if choices.sometimes(4):
        header.policies.add(policy=choices.pick(("a", "", "b" * 300)))
    scratch.wait(_published(_sent(raw(header.SerializeToString(), choices), data, choices)))


async def _published(frames: Iterable[bytes]) -> None:
    header, stream = await chunks.read_header(scratch.stream(frames), param_store_pb2.PublishHeader)
    parts = [_parts(policy.blobs) for policy in header.policies]
    async with _uploads().receive(stream, [part for each in parts for part in each]) as blobs:
        _writes(header.policies, parts, blobs)


def handover(choices: Choices) -> None:
    """A line on the standard input of a worker."""
    line = document({"ticket": "t", "token": ""}, choices)
    scratch_line = text(scratch.json_text(line), choices)
    Handover().take(scratch_line.encode("utf-8", "surrogatepass"))


def host(choices: Choices) -> None:
    """What a host says to its pool."""

    async def said() -> AsyncIterator[hosts_pb2.HostMessage]:
        for each in _HOST_SAYS:
            yield message(hosts_pb2.HostMessage, raw(each.SerializeToString(), choices), "what a host says")

    async def hear(_order: hosts_pb2.HostOrder) -> None:
        pass

    asyncio.run(Hosts(WorkerProgram("module", (), {}, str), lambda: None).attach(said(), hear))
