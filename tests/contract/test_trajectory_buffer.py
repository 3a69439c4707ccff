"""Trajectory buffer: each upload is checked and applied exactly once, whatever order, copies and delays it comes in."""

import asyncio
import dataclasses
import errno
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from marless.core.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    JobStateError,
    NotFoundError,
    OverloadedError,
    SpecError,
    StaleError,
    UnavailableError,
)
from marless.core.limits import MAX_COUNT
from marless.learning.data.rollout import rollout
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.rpc import chunks
from marless.rpc.v1 import learner_pool_pb2
from marless.services.learner_pool import reservations
from marless.services.learner_pool.content import check_checksum, declared_bytes, views
from marless.services.learner_pool.trajectory_buffer import (
    UNKNOWN,
    Opening,
    TrajectoryBuffer,
    TrajectoryFile,
    UploadCounts,
)
from tests.memoryless import Memoryless
from tests.scripted_env import ScriptedEnv

STEPS, BATCH = 4, 2
PLENTY = 2**24
TINY = TrajectorySchema(EnvSpaces((AgentClass("a", ("a",), 1, Discrete(3)),), 0, None), 2, 1, with_state=False)
CONTINUOUS = TrajectorySchema(
    EnvSpaces((AgentClass("a", ("a",), 1, Box((0.0,), (1.0,))),), 0, None), 2, 1, with_state=False
)

IMAGES = TrajectorySchema(
    EnvSpaces((AgentClass("a", ("a",), 6, Discrete(3), (1, 2, 3)),), 0, None), 2, 1, with_state=False
)


class Uniform(Memoryless):
    """Draws any action, so that a trajectory has something to say."""

    def sample(self, obs_NBO, mask_NBA, rng):
        shape = obs_NBO.shape[:2]
        return rng.integers(2, size=shape, dtype=np.int32), rng.normal(size=shape).astype(np.float32)

    def to_env(self, action):
        return action


def played(seed: int = 0) -> dict[str, np.ndarray]:
    """What a real rollout produces, with deaths, masks and state."""
    trajectory, _ = rollout(ScriptedEnv(BATCH), [Uniform()], steps=STEPS, seed=seed, with_state=True)
    return {name: np.ascontiguousarray(array) for name, array in trajectory.arrays.items()}


PLAYED = TrajectorySchema(ScriptedEnv().spaces, STEPS, BATCH, with_state=True)


def blank(schema: TrajectorySchema, **changes: np.ndarray) -> dict[str, np.ndarray]:
    """Zeros of the declared shapes."""
    return {name: np.zeros(shape, dtype) for name, (dtype, shape) in schema.shapes(boot_rows=0).items()} | changes


EPOCH = 3
"""Of whoever opened the job."""


def opened(tmp_path: Path, schema: TrajectorySchema, limit_bytes: int = PLENTY) -> TrajectoryBuffer:
    buffer = TrajectoryBuffer(tmp_path, limit_bytes)
    buffer.open("job", schema, epoch=EPOCH, round_=0)
    return buffer


def header_of(
    arrays: dict[str, np.ndarray], round_: int = 0, index: int = 0, job: str = "job", epoch: int = EPOCH
) -> learner_pool_pb2.UploadHeader:
    infos = [
        learner_pool_pb2.ArrayInfo(name=name, dtype=array.dtype.name, shape=array.shape)
        for name, array in arrays.items()
    ]
    header = learner_pool_pb2.UploadHeader(job=job, round=round_, index=index, arrays=infos, epoch=epoch)
    header.crc32 = chunks.checksum(header, [array.tobytes() for array in arrays.values()])
    return header


async def stream_of(header, arrays: dict[str, np.ndarray]) -> AsyncIterator[bytes]:
    for frame in chunks.frames(header, [array.tobytes() for array in arrays.values()]):
        await asyncio.sleep(0)
        yield frame


async def upload(buffer: TrajectoryBuffer, arrays: dict[str, np.ndarray], **where) -> bool:
    return await buffer.receive(stream_of(header_of(arrays, **where), arrays))


def load(file: TrajectoryFile) -> Trajectory:
    """As a learner worker has it."""
    content = memoryview(file.path.read_bytes())
    check_checksum(file.header, content)
    return views(file.header, content)


def files(tmp_path: Path) -> list[Path]:
    """Trajectories in the spool."""
    return [path for path in tmp_path.glob("*/*") if path.name != "lock"]


@pytest.fixture
def buffer(tmp_path):
    buffer = opened(tmp_path, TINY)
    yield buffer
    buffer.shutdown()


async def test_what_is_taken_in_is_what_learners_map(tmp_path):
    buffer = opened(tmp_path, PLAYED)
    sent = {index: played(index) for index in (2, 0, 1)}
    for index, arrays in sent.items():
        assert await upload(buffer, arrays, index=index)
    taken = [load(file) for file in buffer.trajectories("job", 0, 3)]
    for index, trajectory in enumerate(taken):  # ordered by index, not by arrival
        assert trajectory.arrays.keys() == sent[index].keys()
        for name, array in sent[index].items():
            np.testing.assert_array_equal(trajectory[name], array)
    buffer.shutdown()


async def test_each_upload_of_a_hostile_schedule_is_applied_exactly_once(buffer):
    """Rounds of 5 actors; one upload in ten is sent twice at once, one in twenty arrives after its round."""
    rng = random.Random(7)
    rounds, actors = 60, 5
    arrays = {(r, i): blank(TINY, **{"reward/0": np.full((2, 1, 1), 10 * r + i, np.float32)})
              for r in range(rounds) for i in range(actors)}  # fmt: skip
    expected, answers, late = Counter(), Counter(), []
    for round_ in range(rounds):
        sends = [key for key in arrays if key[0] == round_]
        copies = [key for key in sends if rng.random() < 0.1]
        late += [key for key in sends if rng.random() < 0.05]
        expected["duplicate"] += len(copies)
        order = rng.sample(sends + copies, len(sends + copies))
        results = await asyncio.gather(*(upload(buffer, arrays[k], round_=k[0], index=k[1]) for k in order))
        answers.update(results)
        rewards = [load(file)["reward/0"][0, 0, 0] for file in buffer.trajectories("job", round_, actors)]
        assert rewards == [10 * round_ + i for i in range(actors)]
        buffer.advance("job", round_ + 1)
        while late and rng.random() < 0.5:
            key = late.pop()
            with pytest.raises(StaleError, match=f"round {key[0] + 1} has passed, round {round_ + 2} is next"):
                await upload(buffer, arrays[key], round_=key[0], index=key[1])
            expected["stale"] += 1
    assert expected["duplicate"] > 10
    assert expected["stale"] > 5
    assert answers == {True: rounds * actors, False: expected["duplicate"]}
    assert buffer.counts == UploadCounts(applied=rounds * actors, **expected)


async def test_a_round_that_ends_during_an_upload_makes_it_stale_and_leaves_nothing(buffer, tmp_path):
    arrays, go = blank(TINY), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield chunks.header_frame(header_of(arrays))
        await go.wait()
        for frame in chunks.data_frames([array.tobytes() for array in arrays.values()]):
            yield frame

    receiving = asyncio.create_task(buffer.receive(slow()))
    await asyncio.sleep(0)
    buffer.advance("job", 1)
    go.set()
    with pytest.raises(StaleError):
        await receiving
    assert buffer.counts == UploadCounts(stale=1)
    assert files(tmp_path) == []


async def test_a_job_that_is_closed_during_an_upload_leaves_nothing(buffer, tmp_path):
    arrays, go = blank(TINY), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        for frame in chunks.frames(header_of(arrays), [array.tobytes() for array in arrays.values()]):
            yield frame
            await go.wait()

    receiving = asyncio.create_task(buffer.receive(slow()))
    await asyncio.sleep(0)
    buffer.close("job")
    go.set()
    with pytest.raises(NotFoundError, match="job 'job' is not open"):
        await receiving
    assert files(tmp_path) == []


async def test_missing_trajectories_are_named(buffer):
    await upload(buffer, blank(TINY), index=1)
    with pytest.raises(StaleError, match=r"job job, round 1: no trajectory of actors \[0, 2\]"):
        buffer.trajectories("job", 0, 3)


async def test_a_job_that_is_not_open_is_refused(buffer):
    with pytest.raises(NotFoundError, match="job 'other' is not open"):
        await upload(buffer, blank(TINY), job="other")
    with pytest.raises(NotFoundError):
        buffer.trajectories("other", 0, 1)
    assert buffer.counts == UploadCounts(refused=1)


def spoilt() -> dict[str, dict[str, np.ndarray]]:
    good = blank(TINY)
    obs = good["obs/0"]
    return {
        "obs/0 is float32": good | {"obs/0": obs[:, :, :, [0, 0]]},
        "obs/0 is int32": good | {"obs/0": obs.astype(np.int32)},
        "float64": good | {"obs/0": obs.astype(np.float64)},
        "obs/0 holds NaN": good | {"obs/0": np.full_like(obs, np.nan)},
        "reward/0 holds NaN or infinite": good | {"reward/0": np.full_like(good["reward/0"], np.inf)},
        r"action/0 leaves the range 0…2": good | {"action/0": np.full_like(good["action/0"], 3)},
        r"action/0 leaves the range": good | {"action/0": np.full_like(good["action/0"], -1)},
        r"\['log_prob/0'\] are missing": {name: array for name, array in good.items() if name != "log_prob/0"},
        r"\['extra'\] are missing or unknown": good | {"extra": obs},
        "boot_index names a step at which no segment was cut": good
        | {"boot_index": np.array([1], np.int32), "boot_obs/0": np.zeros((1, 1, 1), np.float32)},
        "positions within": good
        | {"boot_index": np.array([2], np.int32), "boot_obs/0": np.zeros((1, 1, 1), np.float32)},
        "cut holds bytes that are neither 0 nor 1": good | {"cut": np.full((2, 1), 2, np.uint8).view(np.bool_)},
    }


@pytest.mark.parametrize("sentence", spoilt())
async def test_what_does_not_fit_the_declared_spaces_is_refused_and_named(buffer, tmp_path, sentence):
    with pytest.raises(CorruptError, match=sentence):
        await upload(buffer, spoilt()[sentence])
    assert buffer.counts == UploadCounts(refused=1)
    assert files(tmp_path) == []
    assert await upload(buffer, blank(TINY))  # the place is still free


async def test_images_arrive_as_bytes_and_as_nothing_else(tmp_path):
    buffer = opened(tmp_path, IMAGES)
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 1, 1, 6)
    assert await upload(buffer, blank(IMAGES, **{"obs/0": pixels}))
    (file,) = buffer.trajectories("job", 0, 1)
    assert np.array_equal(views(file.header, memoryview(file.path.read_bytes()))["obs/0"], pixels)
    with pytest.raises(CorruptError, match=r"obs/0 is float32\[2, 1, 1, 6\], the job declares uint8"):
        await upload(buffer, blank(IMAGES, **{"obs/0": pixels.astype(np.float32)}), index=1)
    buffer.shutdown()


async def test_continuous_actions_may_leave_the_box_but_not_be_nan(tmp_path):
    buffer = opened(tmp_path, CONTINUOUS)
    wide = np.full((2, 1, 1, 1), 7.5, np.float32)  # before clipping to the box
    assert await upload(buffer, blank(CONTINUOUS, **{"action/0": wide}))
    with pytest.raises(CorruptError, match="action/0 holds NaN"):
        await upload(buffer, blank(CONTINUOUS, **{"action/0": wide * np.nan}), index=1)
    buffer.shutdown()


def small(arrays: dict[str, np.ndarray], flip: bool = False, **where) -> learner_pool_pb2.SmallUpload:
    """An upload of a call with several."""
    data = bytearray(b"".join(array.tobytes() for array in arrays.values()))
    data[0] ^= flip
    return learner_pool_pb2.SmallUpload(header=header_of(arrays, **where).SerializeToString(), data=bytes(data))


def many(buffer: TrajectoryBuffer, *uploads: learner_pool_pb2.SmallUpload) -> list[str]:
    """The outcomes of these uploads in one call."""
    outcomes = buffer.receive_many(learner_pool_pb2.UploadManyRequest(uploads=uploads)).outcomes
    return [each.error_code or ("duplicate" if each.duplicate else "applied") for each in outcomes]


async def test_of_many_uploads_in_one_call_each_is_taken_or_refused_by_itself(buffer, tmp_path):
    await buffer.reservations.reserve("job", 0, 4, 60.0)
    nan = np.full((2, 1, 1), np.nan, np.float32)
    outcomes = many(
        buffer,
        small(blank(TINY), index=0),
        small(blank(TINY), index=0),
        small(blank(TINY, **{"reward/0": nan}), index=1),
        small(blank(TINY), flip=True, index=1),
        small(blank(TINY), index=1, round_=1),
        small(blank(TINY), index=1, epoch=EPOCH - 1),
        small(blank(TINY), index=1, job="other"),
        learner_pool_pb2.SmallUpload(header=b"\xff"),
        small(blank(TINY, cut=np.zeros((1, 1), bool)), index=1),
        small(blank(TINY, **{"reward/0": np.full((2, 1, 1), 7, np.float32)}), index=3),
        small(blank(TINY), index=4),
    )
    assert outcomes == [
        *("applied", "duplicate", "CorruptError", "CorruptError", "JobStateError", "FencedError", "NotFoundError"),
        *("CorruptError", "CorruptError", "applied", "OverloadedError"),
    ]
    assert buffer.counts == UploadCounts(applied=2, duplicate=1, fenced=1, refused=7)
    assert await upload(buffer, blank(TINY), index=1)
    assert many(buffer, small(blank(TINY), index=1), small(blank(TINY), index=2)) == ["duplicate", "applied"]
    taken = [load(each) for each in buffer.trajectories("job", 0, 4)]
    assert [each["reward/0"].max() for each in taken] == [0, 0, 0, 7]
    assert len(files(tmp_path)) == 4
    with pytest.raises(SpecError, match="the number of uploads is 257"):
        many(buffer, *[small(blank(TINY))] * 257)
    buffer.close("job")
    assert (buffer.held_bytes, files(tmp_path)) == (0, [])


@pytest.mark.parametrize("schema", ["discrete", "continuous"])
def test_trajectories_that_are_looked_at_together_are_valid_if_each_is(schema):
    schema, rng = {"discrete": PLAYED, "continuous": CONTINUOUS}[schema], np.random.default_rng(5)
    verdicts = Counter()
    for _ in range(400):
        some = [_scrambled(schema, rng) for _ in range(rng.integers(1, 4))]
        stacked = {name: np.stack([each[name] for each in some]) for name in some[0]}
        each_is = all(_passes(schema, each) for each in some)
        assert schema.are_valid(stacked) == each_is
        verdicts[each_is] += 1
    assert min(verdicts[True], verdicts[False]) > 40


def _scrambled(schema: TrajectorySchema, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A trajectory with two bootstrap rows, of which some number may be wrong."""
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in schema.shapes(boot_rows=2).items()}
    arrays["cut"][...] = rng.random(arrays["cut"].shape) < 0.95
    index = rng.choice(arrays["cut"].size, 2, replace=False)
    arrays["boot_index"][...] = np.sort(index) if rng.random() < 0.95 else index + rng.integers(-1, 2)
    name = rng.choice(sorted(arrays))
    if rng.random() < 0.3 and arrays[name].size:
        kind = arrays[name].dtype.kind
        flat = arrays[name].reshape(-1)
        at = rng.integers(flat.size)
        if kind == "b":
            flat.view(np.uint8)[at] = rng.integers(3)
        else:
            flat[at] = rng.choice([np.nan, np.inf, 1.0]) if kind == "f" else rng.integers(-1, 9)
    return arrays


def _passes(schema: TrajectorySchema, arrays: dict[str, np.ndarray]) -> bool:
    try:
        schema.check_values(Trajectory(arrays))
    except CorruptError:
        return False
    return True


@pytest.mark.parametrize("at", range(0, 54, 7))
async def test_one_flipped_bit_is_refused(buffer, at):
    arrays = blank(TINY)
    data = bytearray(b"".join(array.tobytes() for array in arrays.values()))
    data[at % len(data)] ^= 1
    with pytest.raises(CorruptError, match="job job, round 1, actor 0: checksum does not match"):
        await buffer.receive(aiter_of(list(chunks.frames(header_of(arrays), [bytes(data)]))))


async def aiter_of(frames: list[bytes]) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame


async def test_streams_that_are_cut_or_too_long_are_refused_and_leave_nothing(buffer, tmp_path):
    arrays = blank(TINY)
    whole = b"".join(array.tobytes() for array in arrays.values())
    for data in (b"", whole[:-1], whole + b"\0"):
        with pytest.raises(CorruptError):
            await buffer.receive(aiter_of(list(chunks.frames(header_of(arrays), [data]))))
    with pytest.raises(CorruptError, match="does not start with a UploadHeader"):
        await buffer.receive(aiter_of([]))
    assert files(tmp_path) == []


async def test_absurd_headers_are_refused_before_any_room_is_made(buffer, tmp_path):
    info = learner_pool_pb2.ArrayInfo
    for infos in (
        [],
        [info(name="x", dtype="float32", shape=[2**40])],
        [info(name="x", dtype="float32", shape=[2**62, 2**62])],
        [info(name="x", dtype="float32", shape=[-1])],
        [info(name="x", dtype="object", shape=[1])],
        [info(name="x", dtype="bool", shape=[1]), info(name="x", dtype="bool", shape=[1])],
    ):
        header = learner_pool_pb2.UploadHeader(job="job", epoch=EPOCH, arrays=infos)
        with pytest.raises(CorruptError):
            await buffer.receive(aiter_of(list(chunks.frames(header, []))))
    assert files(tmp_path) == []


async def test_an_upload_that_its_actor_gives_up_leaves_nothing(buffer, tmp_path):
    started = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield chunks.header_frame(header_of(blank(TINY)))
        started.set()
        await asyncio.Event().wait()

    receiving = asyncio.create_task(buffer.receive(endless()))
    await started.wait()
    assert len(files(tmp_path)) == 1
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    assert files(tmp_path) == []
    assert await upload(buffer, blank(TINY))


async def test_waiting_bytes_are_bounded_and_room_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(reservations, "UPLOAD_WAIT_S", 0.01)
    size = declared_bytes(header_of(blank(TINY)))
    buffer = opened(tmp_path, TINY, 2 * size)
    for index in range(2):
        await upload(buffer, blank(TINY), index=index)
    with pytest.raises(OverloadedError, match=f"{2 * size} bytes are in use, {size} more exceed"):
        await upload(buffer, blank(TINY), index=2)
    assert not await upload(buffer, blank(TINY), index=1)  # a copy of what waits needs no room
    assert len(files(tmp_path)) == 2
    buffer.advance("job", 1)
    assert files(tmp_path) == []
    for index in range(2):
        assert await upload(buffer, blank(TINY), round_=1, index=index)
    buffer.close("job")
    buffer.open("job", TINY, epoch=EPOCH, round_=0)
    for index in range(2):  # all bytes were given back, not one too few
        assert await upload(buffer, blank(TINY), index=index)
    assert buffer.counts == UploadCounts(applied=6, duplicate=1, refused=1)
    buffer.shutdown()


async def test_a_full_disk_is_said_and_leaves_nothing(buffer, tmp_path, monkeypatch):
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(UnavailableError, match="No space left on device; give it room or choose another --spool"):
            await upload(buffer, blank(TINY))
    assert files(tmp_path) == []
    assert await upload(buffer, blank(TINY))


def test_a_spool_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"spool directory .*file: Not a directory; choose another with --spool"):
        TrajectoryBuffer(tmp_path / "file", PLENTY)


async def test_opening_again_keeps_what_waits_unless_the_spaces_changed(buffer, tmp_path):
    await upload(buffer, blank(TINY))
    buffer.open("job", TINY, epoch=EPOCH, round_=0)
    assert len(buffer.trajectories("job", 0, 1)) == 1
    buffer.open("job", dataclasses.replace(TINY, steps=3), epoch=EPOCH, round_=0)
    assert files(tmp_path) == []


def reward(value: float) -> dict[str, np.ndarray]:
    return blank(TINY, **{"reward/0": np.full((2, 1, 1), value, np.float32)})


def rewards(buffer: TrajectoryBuffer, round_: int) -> list[float]:
    return [float(load(file)["reward/0"][0, 0, 0]) for file in buffer.trajectories("job", round_, 1)]


def without_rounds(tmp_path: Path, limit_bytes: int = PLENTY) -> TrajectoryBuffer:
    """Of a job whose rollouts end in any order."""
    buffer = TrajectoryBuffer(tmp_path, limit_bytes)
    buffer.open("job", TINY, epoch=EPOCH, round_=0, ahead=MAX_COUNT)
    return buffer


async def test_rollouts_without_rounds_are_taken_in_any_order_and_dropped_when_used(tmp_path):
    buffer = without_rounds(tmp_path)
    for rollout_ in (7, 2, 10**9, 5):
        assert await upload(buffer, blank(TINY), round_=rollout_)
    assert [each.header.round for each in buffer.rollouts("job", [5, 2])] == [5, 2]
    with pytest.raises(StaleError, match=r"job job: no trajectories of rollouts \[1, 3\]; run them again"):
        buffer.rollouts("job", [1, 2, 3])
    buffer.used("job", [5, 2, 2], 3)
    assert (len(files(tmp_path)), [each.header.round for each in buffer.rollouts("job", [7, 10**9])]) == (2, [7, 10**9])
    with pytest.raises(StaleError, match="round 3 has passed, round 4 is next"):
        await upload(buffer, blank(TINY), round_=2)
    assert await upload(buffer, blank(TINY), round_=5)  # again, by a coordinator that does not know of the gradient
    buffer.used("job", [5], 0)  # the oldest one does not go back
    with pytest.raises(StaleError, match="has passed"):
        await upload(buffer, blank(TINY), round_=2)
    buffer.used("job", [], 8)
    assert [each.header.round for each in buffer.rollouts("job", [10**9])] == [10**9]
    assert len(files(tmp_path)) == 1
    buffer.used("job", [10**9], 8)
    assert (files(tmp_path), buffer.held_bytes) == ([], 0)
    buffer.shutdown()


async def test_the_next_coordinator_keeps_rollouts_from_its_oldest_on(tmp_path):
    buffer = without_rounds(tmp_path)
    for rollout_ in (3, 4, 9):
        await upload(buffer, blank(TINY), round_=rollout_)
    buffer.open("job", TINY, epoch=EPOCH + 1, round_=4, ahead=MAX_COUNT)
    assert [each.header.round for each in buffer.rollouts("job", [4, 9])] == [4, 9]
    assert len(files(tmp_path)) == 2
    assert await upload(buffer, blank(TINY), round_=6, epoch=EPOCH + 1)
    buffer.used("job", [4], 6)
    buffer.open("job", TINY, epoch=EPOCH + 2, round_=4, ahead=MAX_COUNT)  # it does not know that 4 was used
    assert await upload(buffer, blank(TINY), round_=4, epoch=EPOCH + 2)
    assert len(buffer.rollouts("job", [4, 6, 9])) == 3
    buffer.shutdown()


async def test_small_uploads_without_rounds_need_no_reservation_but_room(tmp_path):
    size = sum(array.nbytes for array in blank(TINY).values())
    buffer = without_rounds(tmp_path, limit_bytes=3 * size)
    assert many(buffer, *(small(blank(TINY), round_=rollout_) for rollout_ in (5, 1, 1, 8, 9))) == [
        *("applied", "applied", "duplicate", "applied", "OverloadedError"),
    ]
    assert buffer.held_bytes == 3 * size
    waiting = asyncio.create_task(upload(buffer, blank(TINY), round_=9))
    for _ in range(5):
        await asyncio.sleep(0)
    buffer.used("job", [1], 0)
    assert await waiting
    assert many(buffer, small(blank(TINY), round_=10)) == ["OverloadedError"]
    buffer.used("job", [5, 8, 9], 10)
    assert (buffer.held_bytes, files(tmp_path)) == (0, [])
    assert many(buffer, small(blank(TINY), round_=10)) == ["applied"]
    buffer.shutdown()


async def test_small_uploads_do_not_pass_one_that_waits_for_room(tmp_path):
    size = sum(array.nbytes for array in blank(TINY).values())
    buffer = without_rounds(tmp_path, limit_bytes=3 * size)
    buffer.budget.hold("other", size)
    waiting = asyncio.create_task(buffer.budget.take("other", 3 * size))
    await asyncio.sleep(0)
    assert many(buffer, small(blank(TINY), round_=1)) == ["OverloadedError"]
    waiting.cancel()
    await asyncio.wait([waiting])
    assert many(buffer, small(blank(TINY), round_=1)) == ["applied"]
    buffer.shutdown()


async def test_the_next_coordinator_may_use_what_waits_and_only_its_own_actors_may_add_to_it(buffer):
    await upload(buffer, reward(1))
    buffer.open("job", TINY, epoch=EPOCH + 1, round_=0)
    assert rewards(buffer, 0) == [1]
    with pytest.raises(FencedError, match="epoch 3 of job job is over: epoch 4 has begun"):
        await upload(buffer, reward(2), index=1)
    assert not await upload(buffer, reward(1), epoch=EPOCH + 1)  # sampled again: the same
    assert await upload(buffer, reward(2), index=1, epoch=EPOCH + 1)
    assert buffer.counts == UploadCounts(applied=2, duplicate=1, fenced=1)


async def test_where_an_environment_does_not_follow_from_its_seed_the_newest_coordinators_sample_counts(
    buffer, tmp_path
):
    await upload(buffer, reward(1))
    buffer.open("job", TINY, epoch=EPOCH + 1, round_=0)
    assert await upload(buffer, reward(2), epoch=EPOCH + 1)
    assert rewards(buffer, 0) == [2]
    assert len(files(tmp_path)) == 1
    with pytest.raises(AlreadyExistsError, match="round 1: actor 0 has uploaded a trajectory with other content"):
        await upload(buffer, reward(3), epoch=EPOCH + 1)
    assert rewards(buffer, 0) == [2]
    assert buffer.held_bytes == declared_bytes(header_of(blank(TINY)))
    assert buffer.counts == UploadCounts(applied=2, refused=1)


async def test_two_uploads_of_one_place_at_once_are_told_apart(buffer):
    answers = await asyncio.gather(*(upload(buffer, reward(i)) for i in (1, 2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [bool, AlreadyExistsError]
    assert rewards(buffer, 0) == [1]


async def test_an_epoch_that_the_job_was_not_opened_with_is_refused(buffer):
    with pytest.raises(NotFoundError, match="job 'job' is open under epoch 3 in this learner pool, not under 4"):
        await upload(buffer, blank(TINY), epoch=EPOCH + 1)
    assert buffer.counts == UploadCounts(refused=1)


async def test_a_round_that_has_not_begun_is_refused_also_in_a_pool_that_saw_none_before_it(tmp_path):
    buffer = TrajectoryBuffer(tmp_path, PLENTY)
    buffer.open("job", TINY, epoch=1, round_=7)
    with pytest.raises(JobStateError, match="job job: round 9 has not begun, round 8 is next"):
        await upload(buffer, blank(TINY), round_=8, epoch=1)
    with pytest.raises(StaleError, match="round 7 has passed, round 8 is next"):
        await upload(buffer, blank(TINY), round_=6, epoch=1)
    assert await upload(buffer, blank(TINY), round_=7, epoch=1)
    buffer.advance("job", 8)
    assert await upload(buffer, blank(TINY), round_=8, epoch=1)
    buffer.shutdown()


async def test_a_request_to_open_a_job_that_arrives_late_or_twice_does_not_bring_its_round_back(buffer):
    buffer.open("job", TINY, epoch=EPOCH, round_=2, opening=Opening("first", 3))
    buffer.advance("job", 3)
    for late in (3, 2):
        buffer.open("job", TINY, epoch=EPOCH, round_=2, opening=Opening("first", late))
        assert await upload(buffer, reward(late), round_=3, index=late - 2)
    for newer in (Opening("first", 4), Opening("second", 1), UNKNOWN):  # the update of a round was not recorded
        buffer.open("job", TINY, epoch=EPOCH, round_=2, opening=newer)
        assert await upload(buffer, blank(TINY), round_=2)
        buffer.advance("job", 3)


async def test_an_epoch_that_ends_during_an_upload_fences_it(buffer, tmp_path):
    arrays, go = blank(TINY), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        for frame in chunks.frames(header_of(arrays), [array.tobytes() for array in arrays.values()]):
            yield frame
            await go.wait()

    receiving = asyncio.create_task(buffer.receive(slow()))
    await asyncio.sleep(0)
    buffer.open("job", TINY, epoch=EPOCH + 1, round_=0)
    go.set()
    with pytest.raises(FencedError):
        await receiving
    assert files(tmp_path) == []


async def test_files_go_with_their_job_and_with_the_pool(buffer, tmp_path):
    await upload(buffer, blank(TINY))
    buffer.close("job")
    buffer.close("job")
    assert files(tmp_path) == []
    buffer.open("job", TINY, epoch=EPOCH, round_=0)
    await upload(buffer, blank(TINY))
    buffer.shutdown()
    buffer.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_the_spool_of_a_killed_pool_is_removed_and_that_of_a_living_one_kept(tmp_path):
    living = TrajectoryBuffer(tmp_path, PLENTY)
    script = (
        "import os, sys; from pathlib import Path; "
        "from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer;"
        "TrajectoryBuffer(Path(sys.argv[1]), 1); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    TrajectoryBuffer(tmp_path, PLENTY).shutdown()
    assert len(list(tmp_path.iterdir())) == 1
    living.shutdown()
    assert list(tmp_path.iterdir()) == []
