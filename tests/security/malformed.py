"""Requests that are wrong in every way: random bytes, and messages with a bit flipped, cut short, or claiming 4 GiB;
and messages that can be decoded but make no sense.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from marless.rpc import chunks
from marless.rpc.v1 import common_pb2, coordinator_pb2, learner_pool_pb2, param_store_pb2

HEADERS: dict[str, type[Message]] = {
    "Upload": learner_pool_pb2.UploadHeader,
    "WriteRef": common_pb2.WriteRefHeader,
    "Publish": param_store_pb2.PublishHeader,
    "UploadCheckpoint": coordinator_pb2.CheckpointHeader,
}
"""Of each RPC that takes a stream of chunks."""
_JOB = {"env": {"name": "mpe/simple_spread"}, "algorithm": {"name": "ippo"}, "stop": {"rounds": 1}}
_TEXTS = (
    *("", "a", "job", "acting", "agent_0", "0-0", "float32", "obs/0", "../../etc/passwd", "two words", "a{b}"),
    *("ü" * 30, "\0", "x" * 300, "9" * 400, "[" * 2000, "{}", "null", json.dumps(_JOB | {"seed": -1})),
    json.dumps({"classes": [{"name": "a", "agents": ["a"], "obs_size": 2, "action": {"n": 2}}], "state_size": -1}),
)
_WHOLE = (0, 1, 2, 3, -1, 7, 100, 4096, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63))
_REAL = (0.0, 1.0, -1.0, 1e308, 1e-300, float("nan"), float("inf"), float("-inf"))
_BITS = {FieldDescriptor.TYPE_INT32: 31, FieldDescriptor.TYPE_UINT32: 32, FieldDescriptor.TYPE_INT64: 63}


def absurd(kind: Descriptor, rng: random.Random, depth: int = 0) -> Message:
    """A message of this kind whose fields are set to what nobody would send."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        if rng.random() < 0.3 or depth > 4:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue  # no request has one
        values = [_value(field, rng, depth) for _ in range(rng.choice((1, 1, 2, 5)) if _repeats(field) else 1)]
        if _repeats(field):
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(values[0])
        else:
            setattr(message, field.name, values[0])
    return message


def _repeats(field: FieldDescriptor) -> bool:
    repeated: bool = field.is_repeated
    return repeated


def _value(field: FieldDescriptor, rng: random.Random, depth: int) -> object:
    if field.message_type is not None:
        return absurd(field.message_type, rng, depth + 1)
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return rng.choice(_TEXTS)
        case FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 3, 32)))
        case FieldDescriptor.TYPE_DOUBLE:
            return rng.choice(_REAL)
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            return rng.choice((0, 1, 2, 3, 99, -1))
    bits = _BITS[field.type]
    least = 0 if field.type == FieldDescriptor.TYPE_UINT32 else -(2**bits)
    return min(max(rng.choice(_WHOLE), least), 2**bits - 1)


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """A message's bytes made worse."""
    match rng.choice(("random", "flip", "cut", "bomb", "as it is")):
        case "random":
            return rng.randbytes(rng.randrange(200))
        case "flip" if data:
            at = rng.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case "cut":
            return data[: rng.randrange(len(data) + 1)]
        case "bomb":
            tag = bytes([rng.randrange(1, 16) << 3 | 2])
            return data + tag + b"\xff\xff\xff\xff\x0f" + rng.randbytes(8)  # a field that claims 4 GiB
    return data


def requests(method: MethodDescriptor, rng: random.Random) -> list[bytes]:
    """What one call of a method sends: one request, or a stream of up to four."""
    if method.input_type.name == "Chunk":
        return list(_transfer(method.name, rng))
    count = rng.randrange(4) if method.client_streaming else 1
    return [spoilt(absurd(method.input_type, rng).SerializeToString(), rng) for _ in range(count)]


def _transfer(name: str, rng: random.Random) -> Iterator[bytes]:
    header = absurd(HEADERS[name].DESCRIPTOR, rng)
    if rng.random() < 0.5:
        return (spoilt(frame, rng) for frame in chunks.frames(header, [rng.randbytes(rng.choice((0, 5, 5000)))]))
    bare = GetMessageClass(header.DESCRIPTOR)()
    try:
        bare.ParseFromString(spoilt(header.SerializeToString(), rng))
    except Exception:  # noqa: BLE001  # whatever protobuf finds wrong with it
        bare = header
    return chunks.frames(bare, [rng.randbytes(rng.choice((0, 5, 5000)))])
