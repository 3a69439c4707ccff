"""S7: tensors that are not what they say, on every way in: trajectories, published weights, checkpoints.

Each mutation spoils something: a header's field, a shape, a dtype, a name, the order, the length, a bit, a value. Half
of those of trajectories come with a checksum that fits, as a broken or hostile sender's would. None may be taken.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import numpy as np
import pytest

from marless.core.errors import CorruptError, MarlessError, NotFoundError, SpecError
from marless.core.state import PolicyState
from marless.learning.data.rollout import play, rollout
from marless.learning.envs.base import Discrete
from marless.learning.nets import serial
from marless.rpc import chunks
from marless.rpc.v1.learner_pool_pb2 import ArrayInfo, UploadHeader
from marless.services.learner_pool.content import check_bytes, check_header, declared_bytes
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from marless.services.param_store.blobs import BlobPart, BlobUploads
from marless.storage import checkpoint
from marless.storage.checkpoint import Checkpoint, CheckpointProgress, DiskCheckpoints, SavedPolicy
from tests.contract.test_trajectory_buffer import PLAYED, Uniform, played
from tests.scripted_env import ScriptedEnv
from tests.security.malformed import spoilt

Upload = tuple[UploadHeader, bytearray]
SENT = played()


def sealed(header: UploadHeader, data: bytes | bytearray) -> UploadHeader:
    """With the checksum that fits."""
    header.crc32 = chunks.checksum(header, [bytes(data)])
    return header


def whole() -> Upload:
    data = bytearray(b"".join(array.tobytes() for array in SENT.values()))
    infos = [ArrayInfo(name=name, dtype=array.dtype.name, shape=array.shape) for name, array in SENT.items()]
    return sealed(UploadHeader(job="job", round=3, index=1, epoch=2, arrays=infos), data), data


WHOLE, BYTES = whole()
OFFSETS = dict(zip(SENT, np.cumsum([0, *(array.nbytes for array in SENT.values())]).tolist(), strict=False))
ALIKE = [
    (a, b) for a in SENT for b in SENT if a < b and SENT[a].shape == SENT[b].shape and SENT[a].dtype == SENT[b].dtype
]


def fresh() -> Upload:
    header = UploadHeader()
    header.CopyFrom(WHOLE)
    return header, bytearray(BYTES)


def named(header: UploadHeader, name: str) -> ArrayInfo:
    return next(info for info in header.arrays if info.name == name)


def put(data: bytearray, name: str, index: int, value: object) -> None:
    """Write one element of an array."""
    raw = np.array(value).astype(SENT[name].dtype).tobytes()
    start = OFFSETS[name] + index * len(raw)
    data[start : start + len(raw)] = raw


def of_kind(kind: str) -> list[str]:
    return [name for name, array in SENT.items() if array.dtype.kind == kind and array.size]


# Without a fitting checksum: what a bad cable or a bad memory would do.


def flipped_bit(rng: random.Random) -> Upload:
    header, data = fresh()
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return header, data


def swapped_names(rng: random.Random) -> Upload:
    header, data = fresh()
    first, second = (named(header, name) for name in rng.choice(ALIKE))
    first.name, second.name = second.name, first.name
    return header, data


def other_place(rng: random.Random) -> Upload:
    header, data = fresh()
    match rng.choice(("round", "index", "job", "crc32")):
        case "round":
            header.round += rng.choice((1, -1, 2**40))
        case "index":
            header.index += rng.choice((1, -1, 2**20))
        case "job":
            header.job += rng.choice("abc")
        case "crc32":
            header.crc32 ^= 1 << rng.randrange(32)
    return header, data


def other_order(rng: random.Random) -> Upload:
    header, data = fresh()
    infos = list(header.arrays)
    at = rng.randrange(1, len(infos))
    del header.arrays[:]
    header.arrays.extend(infos[at:] + infos[:at])
    return header, data


# With one: what only looking at the content can tell.


def cut_or_longer(rng: random.Random) -> Upload:
    header, data = fresh()
    if rng.random() < 0.5:
        del data[rng.randrange(len(data)) :]
    else:
        data += rng.randbytes(rng.randrange(1, 9))
    return sealed(header, data), data


def other_shape(rng: random.Random) -> Upload:
    header, data = fresh()
    info = rng.choice(header.arrays)
    sides = list(info.shape)
    match rng.choice(("side", "more", "fewer", "huge", "negative", "turned")):
        case "side":
            sides[rng.randrange(len(sides))] += rng.choice((1, -1, 7))
        case "more":
            sides.append(1)
        case "fewer":
            sides = sides[:-1]
        case "huge":
            sides[rng.randrange(len(sides))] = 2 ** rng.randrange(20, 63)
        case "negative":
            sides[rng.randrange(len(sides))] = -rng.randrange(1, 100)
        case "turned":
            sides = sides[::-1] if sides[::-1] != sides else [*sides, 2]
    info.shape[:] = sides
    return sealed(header, data), data


def other_dtype(rng: random.Random) -> Upload:
    header, data = fresh()
    info = rng.choice(header.arrays)
    others = ("float32", "int32", "bool", "float64", "uint8", "object", "<U8", "|V4", "float16", "", "O")
    info.dtype = rng.choice([dtype for dtype in others if dtype != info.dtype])
    return sealed(header, data), data


def other_arrays(rng: random.Random) -> Upload:
    header, data = fresh()
    at = rng.randrange(len(header.arrays))
    match rng.choice(("without", "twice", "renamed", "one more")):
        case "without":
            start = OFFSETS[header.arrays[at].name]
            del data[start : start + SENT[header.arrays[at].name].nbytes]
            del header.arrays[at]
        case "twice":
            header.arrays.append(header.arrays[at])
            data += SENT[header.arrays[at].name].tobytes()
        case "renamed":
            header.arrays[at].name = rng.choice(("", "obs/7", "OBS/0", "__class__", "x" * 300))
        case "one more":
            header.arrays.add(name="extra", dtype="bool", shape=[1])
            data += b"\0"
    return sealed(header, data), data


def no_number(rng: random.Random) -> Upload:
    header, data = fresh()
    name = rng.choice(of_kind("f"))
    put(data, name, rng.randrange(SENT[name].size), rng.choice((np.nan, np.inf, -np.inf)))
    return sealed(header, data), data


def no_truth(rng: random.Random) -> Upload:
    header, data = fresh()
    name = rng.choice(of_kind("b"))
    data[OFFSETS[name] + rng.randrange(SENT[name].size)] = rng.randrange(2, 256)
    return sealed(header, data), data


def no_action(rng: random.Random) -> Upload:
    header, data = fresh()
    k = rng.choice([k for k, each in enumerate(PLAYED.spaces.classes) if isinstance(each.action, Discrete)])
    choices = PLAYED.spaces.classes[k].action.n
    put(data, f"action/{k}", rng.randrange(SENT[f"action/{k}"].size), rng.choice((-1, choices, 2**31 - 1, -(2**31))))
    return sealed(header, data), data


def no_index(rng: random.Random) -> Upload:
    header, data = fresh()
    index, cut = SENT["boot_index"], SENT["cut"].reshape(-1)
    wrong = [*np.flatnonzero(~cut).tolist(), -1, cut.size, 2**31 - 1]
    put(data, "boot_index", rng.randrange(index.size), rng.choice(wrong))
    return sealed(header, data), data


SPOIL: tuple[Callable[[random.Random], Upload], ...] = (
    *(flipped_bit, swapped_names, other_place, other_order, cut_or_longer, other_shape, other_dtype, other_arrays),
    *(no_number, no_truth, no_action, no_index),
)


def take(header: UploadHeader, data: bytes | bytearray) -> None:
    """All that buffer checks, in its order; raises MarlessError."""
    check_header(PLAYED, header)
    if declared_bytes(header) != len(data):
        raise CorruptError("the stream carries something else")
    check_bytes(PLAYED, header, memoryview(data))


def taken_of(mutations: int, seed: str) -> Counter[str]:
    """How many of each kind of mutation were taken."""
    rng, taken = random.Random(seed), Counter[str]()
    for number in range(mutations):
        spoil = SPOIL[number % len(SPOIL)]
        header, data = spoil(rng)
        try:
            take(header, data)
        except MarlessError:
            continue
        taken[spoil.__name__] += 1
    return taken


def test_what_is_whole_is_taken():
    take(*fresh())


def test_none_of_5_000_trajectories_that_were_spoilt_is_taken():
    assert taken_of(5_000, "default") == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_none_of_a_million_trajectories_that_were_spoilt_is_taken():
    assert taken_of(1_000_000, "slow") == {}


async def test_no_stream_that_was_spoilt_is_taken_and_none_leaves_anything(tmp_path):
    """The same through buffer itself, with frames spoilt too."""
    buffer = TrajectoryBuffer(tmp_path, 2**24)
    buffer.open("job", PLAYED, epoch=2, round_=3)
    rng = random.Random("streams")
    for number in range(1000):
        header, data = SPOIL[number % len(SPOIL)](rng)
        sent = list(chunks.frames(header, [bytes(data)]))
        if number % 3 == 0:
            sent[rng.randrange(len(sent))] = spoilt(rng.choice(sent), rng) + b"\0"
        with pytest.raises(MarlessError):
            await buffer.receive(frames(sent))
    assert buffer.counts.applied == 0
    header, data = fresh()
    assert await buffer.receive(frames(list(chunks.frames(header, [bytes(data)]))))
    buffer.shutdown()


async def frames(sent: list[bytes]) -> AsyncIterator[bytes]:
    for frame in sent:
        yield frame


RNG = np.random.default_rng(0)
STATE = PolicyState(
    acting={"policy.0.weight": RNG.normal(size=(8, 6)).astype(np.float32), "policy.0.bias": np.zeros(8, np.float32)},
    learning={"critic.0.weight": RNG.normal(size=(4, 6)).astype(np.float32), "steps": np.array(3, np.int64)},
    metadata={"kind": "categorical"},
)
BLOBS = dict(zip(("acting", "learning"), serial.encode(STATE), strict=True))


def spoil_blob(data: bytes, rng: random.Random) -> bytes:
    """A blob that differs."""
    while (worse := rng.choice((spoilt, _shuffled))(data, rng)) == data:
        pass
    return worse


def _shuffled(data: bytes, rng: random.Random) -> bytes:
    at, other = (rng.randrange(len(data)) for _ in range(2))
    changed = bytearray(data)
    changed[at], changed[other] = changed[other], changed[at]
    return bytes(changed)


async def test_no_published_blob_that_was_spoilt_is_taken():
    uploads, rng = BlobUploads(2**24), random.Random("publishes")
    good = [BlobPart(name, len(blob), hashlib.sha256(blob).digest()) for name, blob in BLOBS.items()]
    for _ in range(5000):
        parts, blobs = list(good), list(BLOBS.values())
        at = rng.randrange(len(parts))
        match rng.choice(("bytes", "size", "digest", "order", "no digest")):
            case "bytes":
                blobs[at] = spoil_blob(blobs[at], rng)
            case "size":
                size = parts[at].size_bytes + rng.choice((1, -1, 100, -(2**40), 2**50))
                parts[at] = BlobPart(parts[at].name, size, parts[at].sha256)
            case "digest":
                parts[at] = BlobPart(parts[at].name, parts[at].size_bytes, spoil_blob(parts[at].sha256, rng))
            case "order":
                blobs.reverse()
            case "no digest":
                parts[at] = BlobPart(parts[at].name, parts[at].size_bytes, b"")
        with pytest.raises(MarlessError):
            async with uploads.receive(frames(list(chunks.data_frames(blobs))), parts, "job"):
                pass


def test_weights_that_were_spoilt_are_refused_or_are_numbers():
    """Nothing protects a safetensors file itself: what decodes has finite numbers, in arrays of its bytes' size."""
    rng = random.Random("weights")
    for _ in range(5000):
        try:
            state = serial.decode_acting(spoil_blob(BLOBS["acting"], rng))
        except CorruptError:
            continue
        assert sum(array.nbytes for array in state.acting.values()) <= len(BLOBS["acting"])
        assert not serial.not_finite(state.acting)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(value):
    for part, name in (("acting", "policy.0.bias"), ("learning", "critic.0.weight")):
        arrays = {key: array.copy() for key, array in getattr(STATE, part).items()}
        arrays[name].flat[3] = value
        fields = {"acting": STATE.acting, "learning": STATE.learning, "metadata": STATE.metadata} | {part: arrays}
        with pytest.raises(CorruptError, match=f"{name} holds NaN or infinite values"):
            serial.decode(*serial.encode(PolicyState(**fields)))


def test_no_checkpoint_that_was_spoilt_is_taken(tmp_path):
    rng = random.Random("checkpoints")
    progress = CheckpointProgress(round=1, env_steps=10, seed=0, actors=1, algorithm="ippo", groups={"a": ("a",)})
    DiskCheckpoints(tmp_path).save(
        Checkpoint(progress=progress, policies={"a": SavedPolicy(version=1, blobs=BLOBS)}), 1
    )
    folder = tmp_path / "round-000001"
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for _ in range(300):
            path.write_bytes(spoil_blob(content, rng))
            try:
                found = checkpoint.read(folder)
            except (CorruptError, NotFoundError):
                continue
            assert path.name == "manifest.json"  # which alone has no digest: the numbers in it may be others
            assert {name: bytes(blob) for name, blob in found.policies["a"].blobs.items()}.items() <= BLOBS.items()
        path.write_bytes(content)


class Broken(ScriptedEnv):
    """Shows, or pays, one agent what is no number."""

    def __init__(self, batch: int, what: str, value: float) -> None:
        super().__init__(batch)
        self._what, self._value = what, value

    def step(self, actions):
        transition = super().step(actions)
        arrays = transition.frame.obs if self._what == "obs" else transition.rewards
        arrays[0][1, 0] = self._value
        return transition


def test_an_environment_that_gives_no_numbers_is_named_with_its_agent():
    agent = ScriptedEnv().spaces.classes[0].agents[1]
    for value in (np.nan, np.inf):
        for what, array in (("obs", "obs/0"), ("reward", "reward/0")):
            with pytest.raises(
                SpecError, match=rf"{array} holds NaN or infinite values, the first of {agent} in copy \d+ at step"
            ):
                rollout(Broken(2, what, value), [Uniform()], steps=4, seed=0, with_state=False)
        with pytest.raises(SpecError, match=f"the rewards of {agent} add up to"):
            play(Broken(2, "reward", value), None, episodes=2, seed=0)


def test_an_update_that_makes_no_numbers_is_not_published():
    from marless.services.learner_pool.learner import _writes

    broken = PolicyState({"w": np.array([1.0, np.nan], np.float32)}, {}, {})
    held = SimpleNamespace(learner=SimpleNamespace(state={"fine": STATE, "broken": broken}.__getitem__))
    task = SimpleNamespace(job="job")
    assert [write.policy for write in _writes(task, held, {"fine": 1}, 3, {})] == ["fine"]
    with pytest.raises(
        SpecError, match=r"the update of 'broken' made NaN or infinite values \(w\) and was not published"
    ):
        _writes(task, held, {"fine": 1, "broken": 1}, 3, {})
