"""Whoever can reach the learner pool uploads what nobody asked for: it changes nothing, and is counted."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from marless.core.errors import AlreadyExistsError, FencedError, JobStateError, NotFoundError, StaleError
from tests.faults.pools import RunningPools, running_pools, small_job
from tests.faults.uploads import Send, Storm

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROUNDS = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory) -> AsyncIterator[RunningPools]:
    async with running_pools(tmp_path_factory.mktemp("pools"), actor_workers=1) as running:
        yield running


async def opened(running: RunningPools, name: str) -> Storm:
    storm = Storm(name, small_job(), running, running.learner_address)
    await storm.open()
    return storm


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calm(running) -> list[dict[str, bytes]]:
    """The weights of every round that nothing befell."""
    storm = await opened(running, "calm")
    for round_ in range(ROUNDS):
        await storm.round(round_)
    weights = await storm.weights()
    await storm.close()
    return weights


async def came_to(storm: Storm, first: int = 0) -> list[dict[str, bytes]]:
    for round_ in range(first, ROUNDS):
        await storm.round(round_)
    weights = await storm.weights()
    await storm.close()
    return weights


async def refused(storm: Storm, error: type[Exception], **what: int) -> None:
    before = storm.running.buffer.counts
    with pytest.raises(error):
        await storm.upload(Send(**{"round": 0, "index": 0, "epoch": storm.epoch, "content": 1} | what))
    after = storm.running.buffer.counts
    assert (after.applied, after.duplicate) == (before.applied, before.duplicate)
    assert (after.refused + after.fenced + after.stale) == (before.refused + before.fenced + before.stale) + 1


async def test_a_trajectory_of_a_round_that_has_not_begun_displaces_nothing(running, calm):
    storm = await opened(running, "future")
    for ahead in range(1, ROUNDS):
        await refused(storm, JobStateError, round=ahead)
    assert await came_to(storm) == calm


async def test_a_trajectory_of_a_coordinator_that_was_replaced_displaces_nothing(running, calm):
    storm = await opened(running, "replaced")
    old = storm.epoch
    await storm.round(0)
    await storm.open(1)
    await refused(storm, FencedError, round=1, epoch=old)
    await refused(storm, FencedError, round=1, epoch=0)
    assert await came_to(storm, 1) == calm


async def test_a_trajectory_of_another_content_displaces_nothing(running, calm):
    storm = await opened(running, "content")
    await storm.upload(Send(0, 0, storm.epoch))
    await refused(storm, AlreadyExistsError)
    assert await came_to(storm) == calm


async def test_a_trajectory_of_a_stranger_is_refused(running):
    storm = await opened(running, "known")
    stranger = Storm("stranger", storm.job, running, running.learner_address)
    await refused(stranger, NotFoundError, epoch=1)
    await refused(storm, NotFoundError, epoch=storm.epoch + 1)
    await storm.close()


async def test_what_was_sampled_from_versions_that_were_lost_is_not_trained_on(running, calm):
    """The store loses the job, and round 0 comes again, from other versions than before: as `Recovery` has it."""
    storm = await opened(running, "restored")
    await storm.round(0)
    for index in range(storm.job.spec.actors.count):
        await storm.upload(Send(1, index, storm.epoch, content=1))
    old = storm.epoch
    await running.store.delete_job(storm.name)
    await running.pools.close_job(storm.name, keep_replay=True)
    await storm.open(0)
    for round_ in range(2):
        await refused(storm, FencedError, round=round_, epoch=old)
    await storm.round(0)
    with pytest.raises(StaleError, match="round 2: no trajectory of actors"):
        await storm.update(1)
    assert await came_to(storm, 1) == calm
