"""Jobs share a spool that is too small for all: whole rounds take turns, and nobody is refused who could wait."""

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from marless.core.errors import (
    JobStateError,
    NotFoundError,
    OverloadedError,
    StaleError,
    TooLargeError,
    UnreachableError,
)
from marless.rpc import chunks
from marless.rpc.v1 import learner_pool_pb2
from marless.services.learner_pool import reservations
from marless.services.learner_pool.content import declared_bytes
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer
from tests.contract.test_trajectory_buffer import EPOCH, TINY, blank, files, header_of, stream_of, upload

ACTORS = 4
PATIENCE_S = 20.0


def sized(rows: int) -> dict[str, np.ndarray]:
    """A trajectory with so many bootstrap rows, of 0 to 2; 1 is what buffer expects."""
    cut = np.zeros((2, 1), np.bool_)
    cut[:rows] = True
    boots = {"boot_index": np.arange(rows, dtype=np.int32), "boot_obs/0": np.zeros((1, rows, 1), np.float32)}
    return blank(TINY, cut=cut, **boots)


LEAST, USUAL, MOST = (declared_bytes(header_of(sized(rows))) for rows in range(3))
ROUND = ACTORS * USUAL


class Jobs:
    """Coordinators of several jobs, all at one buffer."""

    def __init__(self, buffer: TrajectoryBuffer) -> None:
        self.buffer = buffer
        self.rounds: list[str] = []

    def open(self, job: str) -> None:
        self.buffer.open(job, TINY, epoch=EPOCH, round_=0)

    async def reserve(self, job: str, round_: int = 0, actors: int = ACTORS, idle_s: float = 600.0) -> None:
        asked = learner_pool_pb2.ReserveRequest(job=job, round=round_, actors=actors, idle_s=idle_s, epoch=EPOCH)
        await self.buffer.reserve(asked)

    async def fill(self, job: str, round_: int = 0, actors: int = ACTORS, rows: int = 1) -> None:
        for index in range(actors):
            assert await upload(self.buffer, sized(rows), job=job, round_=round_, index=index)

    async def run(self, job: str, rounds: int, actors: int = ACTORS) -> None:
        """Rounds as a coordinator runs them; room that an update has kept is not asked for again."""
        self.open(job)
        kept = 0
        for round_ in range(rounds):
            if kept < actors:
                await self.reserve(job, round_, actors)
            await self.fill(job, round_, actors)
            self.buffer.trajectories(job, round_, actors)
            self.rounds.append(job)
            kept = self.buffer.advance(job, round_ + 1)
        self.buffer.close(job)


@pytest.fixture
def jobs(tmp_path):
    buffer = TrajectoryBuffer(tmp_path, ROUND)
    yield Jobs(buffer)
    buffer.shutdown()


async def waits(coroutine) -> asyncio.Task[None]:
    """Begin something that must wait."""
    task = asyncio.create_task(coroutine)
    await asyncio.wait([task], timeout=0.05)
    assert not task.done()
    return task


async def test_jobs_that_share_a_full_spool_take_turns_and_all_succeed(jobs):
    """Red before: of three jobs, two were refused."""
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for job in "abc":
            group.create_task(jobs.run(job, rounds=5))
    assert sorted(jobs.rounds) == sorted("abc" * 5)
    assert [set(jobs.rounds[at : at + 3]) for at in range(0, 15, 3)] == [set("abc")] * 5
    assert (jobs.buffer.budget.held_bytes, jobs.buffer.counts.refused) == (0, 0)


async def test_rounds_of_several_sizes_end_without_a_deadlock(tmp_path):
    jobs = Jobs(TrajectoryBuffer(tmp_path, 10 * USUAL))
    sizes = {"a": 10, "b": 7, "c": 4, "d": 1, "e": 6}
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for job, actors in sizes.items():
            group.create_task(jobs.run(job, 12, actors))
    assert len(jobs.rounds) == 12 * len(sizes)
    assert max(at for at, job in enumerate(jobs.rounds) if job == "d") < 40, "small rounds wait for none of the large"
    assert jobs.buffer.budget.held_bytes == 0


async def test_a_job_alone_keeps_its_room_from_round_to_round(jobs):
    jobs.open("a")
    await jobs.reserve("a")
    await jobs.fill("a")
    assert jobs.buffer.advance("a", 1) == ACTORS
    await jobs.fill("a", 1)
    jobs.open("b")
    waiting = await waits(jobs.reserve("b"))
    assert jobs.buffer.advance("a", 2) == 0
    await waiting


async def test_a_round_that_can_never_fit_is_refused_at_once_with_what_to_do(jobs):
    jobs.open("a")
    most = ROUND // LEAST
    with pytest.raises(TooLargeError, match=rf"a round of {most + 1} actors takes .* and the spool holds {ROUND}"):
        jobs.buffer.reservations.check("a", most + 1, 0)
    with pytest.raises(TooLargeError, match=r"beside 100 of its replays.*raise --spool-bytes"):
        jobs.buffer.reservations.check("a", most, 100)
    jobs.buffer.reservations.check("a", most, 0)
    with pytest.raises(TooLargeError):
        await jobs.reserve("a", actors=most + 1)


async def test_what_replays_of_others_take_may_come_back(jobs):
    jobs.open("a")
    jobs.buffer.budget.set_aside(ROUND - LEAST)
    with pytest.raises(OverloadedError, match="replays of other jobs leave too little"):
        await jobs.reserve("a")
    jobs.buffer.budget.set_aside(0)
    await jobs.reserve("a")


async def test_trajectories_larger_than_expected_take_what_is_free(tmp_path):
    jobs = Jobs(TrajectoryBuffer(tmp_path, ACTORS * MOST))
    jobs.open("a")
    await jobs.reserve("a")
    await jobs.fill("a", rows=2)
    assert jobs.buffer.budget.held_bytes == ACTORS * MOST
    assert jobs.buffer.advance("a", 1) == ACTORS
    assert jobs.buffer.budget.held_bytes == ACTORS * MOST, "the next round is expected to be as large"


async def test_a_round_larger_than_it_reserved_gives_way_and_reserves_more(tmp_path):
    jobs = Jobs(TrajectoryBuffer(tmp_path, 2 * ROUND))
    for job in "ab":
        jobs.open(job)
        await jobs.reserve(job)
    with pytest.raises(OverloadedError, match="round 1 of job a has taken all that it reserved"):
        await jobs.fill("a", rows=2)
    assert jobs.buffer.budget.held_bytes == ROUND, "nobody waits for who waits"
    again = await waits(jobs.reserve("a"))
    await jobs.fill("b")
    jobs.buffer.close("b")
    await again
    await jobs.fill("a", rows=2)


async def test_a_round_that_turns_out_too_large_for_the_spool_is_refused_for_good(jobs):
    jobs.open("a")
    await jobs.reserve("a")
    with pytest.raises(TooLargeError, match="round 1 takes more than"):
        await jobs.fill("a", rows=2)


async def test_room_that_nobody_uses_is_taken_back(jobs, tmp_path, monkeypatch):
    """A coordinator that died in its rollout holds up no other job; its round is sampled again."""
    monkeypatch.setattr(reservations, "LOOK_S", 0.01)
    jobs.open("dead")
    jobs.open("b")
    await jobs.reserve("dead", idle_s=0.05)
    await jobs.fill("dead", actors=2)
    jobs.buffer.reservations.update("dead", begins=True)
    waiting = await waits(jobs.reserve("b"))
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done(), "an update goes on"
    jobs.buffer.reservations.update("dead", begins=False)
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert files(tmp_path) == []
    jobs.buffer.close("b")
    await jobs.reserve("dead")
    await jobs.fill("dead")


async def test_a_reservation_that_is_repeated_or_given_up_leaves_nothing(jobs):
    jobs.open("a")
    jobs.open("b")
    await jobs.reserve("a")
    await jobs.reserve("a")
    await jobs.fill("a", actors=2)
    await jobs.reserve("a")  # by the next coordinator: what was uploaded stays
    assert len(jobs.buffer.trajectories("a", 0, 2)) == 2
    first, second = await waits(jobs.reserve("b")), await waits(jobs.reserve("b"))
    first.cancel()
    await asyncio.wait([first])
    jobs.buffer.close("a")
    await second
    jobs.buffer.close("b")
    assert (jobs.buffer.budget.held_bytes, jobs.buffer.budget.waiting) == (0, 0)


async def test_a_job_that_is_closed_while_it_waits_hears_of_it(jobs):
    jobs.open("a")
    jobs.open("b")
    await jobs.reserve("a")
    waiting = await waits(jobs.reserve("b"))
    jobs.buffer.close("b")
    jobs.buffer.close("a")
    with pytest.raises(NotFoundError, match="closed while it waited"):
        await waiting
    assert jobs.buffer.budget.held_bytes == 0


async def test_an_upload_that_reserved_nothing_waits_before_its_bytes_are_read(jobs):
    jobs.open("a")
    jobs.open("b")
    await jobs.reserve("a")
    read: list[bytes] = []

    async def stream() -> AsyncIterator[bytes]:
        async for frame in stream_of(header_of(sized(1), job="b"), sized(1)):
            read.append(frame)
            yield frame

    waiting = await waits(jobs.buffer.receive(stream()))
    assert len(read) == 1, "only the first message"
    jobs.buffer.close("a")
    assert await waiting


def header_only(index: int) -> Callable[[], AsyncIterator[bytes]]:
    async def stream() -> AsyncIterator[bytes]:
        yield chunks.header_frame(header_of(sized(1), job="a", index=index))
        await asyncio.Event().wait()

    return stream


async def trickle() -> AsyncIterator[bytes]:
    """One byte after the other, for ever soon enough."""
    header = header_of(sized(1), job="a")
    yield chunks.header_frame(header)
    while True:
        await asyncio.sleep(0.01)
        yield next(iter(chunks.data_frames([b"\0"])))


async def nothing() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


@pytest.mark.parametrize("stalled", [header_only(0), trickle, nothing])
async def test_an_upload_that_stalls_is_given_up_and_leaves_its_room(tmp_path, monkeypatch, stalled):
    """Red before: it held its bytes for as long as its sender liked, and others were refused."""
    monkeypatch.setattr(chunks, "STALL_S", 0.1)
    jobs = Jobs(TrajectoryBuffer(tmp_path, USUAL))
    jobs.open("a")
    jobs.open("b")
    holding = await waits(jobs.buffer.receive(stalled()))
    assert await upload(jobs.buffer, sized(1), job="b")
    with pytest.raises(UnreachableError, match=r"stalled after \d+ of|no UploadHeader came"):
        await holding
    jobs.buffer.shutdown()


# Rounds that overlap


def overlapping(jobs: Jobs, job: str) -> None:
    jobs.buffer.open(job, TINY, epoch=EPOCH, round_=0, ahead=1)


async def test_a_round_ahead_has_room_of_its_own_beside_the_one_that_is_trained(tmp_path):
    jobs = Jobs(TrajectoryBuffer(tmp_path, 2 * ROUND))
    overlapping(jobs, "a")
    for round_ in (0, 1):
        await jobs.reserve("a", round_)
        await jobs.fill("a", round_)
    assert jobs.buffer.budget.held_bytes == 2 * ROUND
    assert len(jobs.buffer.trajectories("a", 0, ACTORS)) == len(jobs.buffer.trajectories("a", 1, ACTORS)) == ACTORS
    assert jobs.buffer.advance("a", 1) == ACTORS
    assert jobs.buffer.budget.held_bytes == ROUND
    assert len(jobs.buffer.trajectories("a", 1, ACTORS)) == ACTORS
    with pytest.raises(StaleError, match="round 1 has passed"):
        await jobs.fill("a", 0)
    with pytest.raises(JobStateError, match="round 4 has not begun"):
        await jobs.fill("a", 3)


@pytest.mark.parametrize("rounds", [1.0, 1.5])
async def test_a_round_ahead_that_does_not_fit_waits_until_the_one_before_is_trained(tmp_path, rounds):
    jobs = Jobs(TrajectoryBuffer(tmp_path, int(rounds * ROUND)))
    overlapping(jobs, "a")
    await jobs.reserve("a")
    await jobs.fill("a")
    waiting = await waits(jobs.reserve("a", 1))
    assert len(jobs.buffer.trajectories("a", 0, ACTORS)) == ACTORS, "what is trained stays"
    jobs.buffer.advance("a", 1)
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    await jobs.fill("a", 1)
    assert jobs.buffer.budget.held_bytes == ROUND


async def test_jobs_that_overlap_share_a_spool_without_waiting_for_each_other(tmp_path):
    jobs = Jobs(TrajectoryBuffer(tmp_path, 3 * ROUND))
    for job in "ab":
        overlapping(jobs, job)
        await jobs.reserve(job)
        await jobs.fill(job)
    await jobs.reserve("a", 1)
    waiting = await waits(jobs.reserve("b", 1))
    jobs.buffer.advance("b", 1)  # its own room is enough
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    await jobs.fill("b", 1)
    await jobs.fill("a", 1)
    for job in "ab":
        jobs.buffer.close(job)
    assert (jobs.buffer.budget.held_bytes, jobs.buffer.budget.waiting) == (0, 0)


async def test_a_job_that_goes_back_a_round_keeps_the_one_that_it_rolled_out_ahead(tmp_path):
    jobs = Jobs(TrajectoryBuffer(tmp_path, 9 * ROUND))
    overlapping(jobs, "a")
    for round_ in (0, 1):
        await jobs.reserve("a", round_)
        await jobs.fill("a", round_)
    jobs.buffer.advance("a", 1)
    overlapping(jobs, "a")
    assert len(jobs.buffer.trajectories("a", 1, ACTORS)) == ACTORS
    with pytest.raises(StaleError, match="run its rollout again"):
        jobs.buffer.trajectories("a", 0, ACTORS)
