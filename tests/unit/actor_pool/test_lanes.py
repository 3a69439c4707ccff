"""Lanes go on in a worker as they go on from their carries, and never from where an interrupted task left them."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
import pytest_asyncio

from marless.core.errors import CorruptError, MarlessError, NotFoundError, UnavailableError
from marless.core.group import LaneRecord
from marless.core.limits import LANE_BYTES, MAX_RETURNED_BYTES
from marless.learning.data import player
from marless.learning.envs import registry
from marless.rpc import carries
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.v1.actor_pool_pb2 import ROLLOUT_MODE_TRAIN, Lane, RolloutReceipt, RolloutSettings, RolloutTask
from marless.services.actor_pool.worker import Actor
from tests.unit.learning.nets.acting_states import state

ENV, OPTIONS = "mpe/simple_spread", '{"agents": 2, "max_cycles": 7}'
FEW, MANY = 1, 2000
SETTINGS = RolloutSettings(env=ENV, env_options_json=OPTIONS, envs=3, steps=4, seed=5, carried=True)


@dataclass
class Worker:
    """An actor whose policies come from nowhere and whose trajectories stay here."""

    store: ParamStore
    job: str
    actors: int
    """Of a round: if they are many, each publishes its carry by itself."""
    uploads: list[dict[str, np.ndarray]] = field(default_factory=list)
    trouble: MarlessError | None = None
    """What the next upload raises."""

    def __post_init__(self) -> None:
        self.actor = Actor(self.store, Security())
        [agents] = registry.spaces(ENV, {"agents": 2, "max_cycles": 7}).classes
        self.acting = {agent: state(agents, seed=i, recurrent="gru") for i, agent in enumerate(agents.agents)}
        self.actor._pull = self._pull
        self.actor._upload = self._upload
        self.made: list[object] = []
        make = self.actor._player._lanes._make
        self.actor._player._lanes._make = lambda key: self.made.append(key) or make(key)

    async def _pull(self, task):
        return self.acting

    async def _upload(self, task, trajectory):
        if self.trouble:
            trouble, self.trouble = self.trouble, None
            raise trouble
        self.uploads.append({name: array.copy() for name, array in trajectory.arrays.items()})
        return 1

    async def run(self, round_: int, start: Lane | None, index: int = 0) -> Lane:
        """Run a lane; if its carry returns, publish it, as a coordinator does."""
        task = RolloutTask(
            job=self.job,
            round=round_,
            mode=ROLLOUT_MODE_TRAIN,
            index=index,
            settings=SETTINGS,
            actors=self.actors,
            lane=start,
        )
        receipt = RolloutReceipt.FromString(await self.actor.run(task.SerializeToString()))
        lane = LaneRecord(lane=receipt.lane.lane, version=receipt.lane.version, digest=receipt.lane.digest)
        assert bool(receipt.carry) == (self.actors == FEW)
        if receipt.carry:
            await carries.publish(self.store, self.job, 0, round_, {lane: receipt.carry})
        return receipt.lane


@pytest_asyncio.fixture(params=[FEW, MANY])
async def worker(store, job, request):
    return Worker(store, job, request.param)


async def undisturbed(worker: Worker, rounds: int = 4) -> list[Lane]:
    found = [None]
    for round_ in range(rounds):
        found.append(await worker.run(round_, found[-1]))
    return found[1:]


@pytest.mark.parametrize("actors", [1, 3, 100])
def test_carries_return_that_are_small_together(actors):
    most = MAX_RETURNED_BYTES // actors - LANE_BYTES
    assert carries.is_returned(bytes(most), actors)
    assert not carries.is_returned(bytes(most + 1), actors)


async def test_a_lane_that_lives_and_one_that_is_loaded_in_every_round_are_equal(worker, store, job):
    left = await undisturbed(worker)
    assert [lane.version for lane in left] == [1, 2, 3, 4]
    assert len({lane.digest for lane in left}) == 4
    assert worker.made == [(ENV, OPTIONS, SETTINGS.with_state, 3, 0)]
    assert [upload["resumed"].any() for upload in worker.uploads] == [False, True, True, True]
    for round_, start in ((2, left[1]), (3, left[2])):  # the oldest version is gone by now
        other = Worker(store, job, worker.actors)
        assert await other.run(round_, start) == left[round_]
        assert all(np.array_equal(other.uploads[0][name], array) for name, array in worker.uploads[round_].items())


@pytest.mark.parametrize("trouble", [UnavailableError("no answer"), NotFoundError("no such job")])
async def test_a_lane_that_an_error_has_moved_is_loaded_again(worker, trouble):
    one = await worker.run(0, None)
    worker.trouble = trouble
    with pytest.raises(type(trouble)):
        await worker.run(1, one)
    two = await worker.run(1, one)
    assert two == (await worker.run(1, one))  # and a lane that has moved on
    assert all(np.array_equal(worker.uploads[-1][name], array) for name, array in worker.uploads[-2].items())
    assert two.version == 2
    assert len(worker.made) == 1


async def test_a_task_that_is_cancelled_leaves_a_lane_that_nobody_goes_on_with(worker):
    one = await worker.run(0, None)
    task = asyncio.create_task(worker.run(1, one))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await worker.run(1, one)).version == 2


async def test_a_worker_with_more_lanes_than_live_in_it_loads_them(worker, monkeypatch):
    monkeypatch.setattr(player, "LIVING", 2)
    found = [None] * 5
    for round_ in range(3):
        found = [await worker.run(round_, start, index) for index, start in enumerate(found)]
    assert len(worker.made) == 2
    assert len({lane.digest for lane in found}) == 5


async def test_a_lane_that_the_store_has_lost_or_changed_is_not_begun_anew(worker, store, job):
    one = await worker.run(0, None)
    with pytest.raises(CorruptError, match="lane 0"):
        await Worker(store, job, worker.actors).run(1, Lane(lane=0, version=1, digest="0" * 64))
    await store.delete_job(job)
    with pytest.raises(NotFoundError):
        await Worker(store, job, worker.actors).run(1, one)
