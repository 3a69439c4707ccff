"""How a rollout is cut into actors: every one with its seed and its share."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import product

import pytest

from marless.core.errors import SpecError
from marless.core.limits import MAX_ACTORS
from marless.core.stopwatch import Stopwatch
from marless.fleet.dispatch import Dispatcher
from marless.fleet.machines import MachineAccounts
from marless.fleet.tenancy import Tenancy
from marless.learning.data.player import actor_seed
from marless.rpc.v1.actor_pool_pb2 import (
    ROLLOUT_MODE_GREEDY,
    ROLLOUT_MODE_RANDOM,
    ROLLOUT_MODE_TRAIN,
    Lane,
    RolloutReceipt,
    RolloutRequest,
    RolloutSettings,
    RolloutTask,
)
from marless.rpc.v1.common_pb2 import PoolMessage, TaskResult, WorkerHello, WorkerMessage
from marless.services.actor_pool.rollouts import MAX_UNDER_WAY, WINDOW, Rollouts, _Places

SETTINGS = RolloutSettings(env="e", envs=4, steps=5, timeout_s=7.0)


def test_every_actor_of_every_round_has_a_seed_of_its_own():
    seeds = [actor_seed(*key) for key in product((0, 1, 2**31 - 1), (1, 2, 3), (0, 1, 2**20), (0, 1, 4095))]
    assert len(set(seeds)) == len(seeds)


def test_seeds_stay_what_they_are_so_that_old_runs_can_be_repeated():
    assert actor_seed(0, 1, 0, 0) == 5836529245451711556


class Recorder:
    """Stands for dispatcher and fleet; finishes tasks in the opposite order."""

    size = 0

    def __init__(self) -> None:
        self.wanted = 0
        self.machines = MachineAccounts()
        self.tenancy = Tenancy()
        self.affinities: list[str] = []
        self.tasks: list[tuple[str, RolloutTask, float]] = []

    async def ensure(self, workers: int) -> None:
        self.wanted = workers

    async def run(
        self,
        task: str,
        payload: Callable[[], bytes],
        *,
        timeout_s: float,
        setting: str,
        affinity: str,
        queued: Stopwatch,
    ) -> TaskResult:
        self.affinities.append(affinity)
        assert setting == "actors.timeout_s"
        assert queued.seconds >= 0
        parsed = RolloutTask.FromString(payload())
        self.tasks.append((task, parsed, timeout_s))
        for _ in range(10 - parsed.index):
            await asyncio.sleep(0)
        return TaskResult(payload=RolloutReceipt(index=parsed.index).SerializeToString())


async def run(**fields) -> tuple[Recorder, list[int]]:
    recorder = Recorder()
    request = RolloutRequest(**{"job": "j", "round": 3, "settings": SETTINGS, "mode": ROLLOUT_MODE_TRAIN} | fields)
    response = await Rollouts(recorder, recorder).run(request)
    assert [each.index for each in response.invocations] == [each.index for each in response.receipts]
    return recorder, [receipt.index for receipt in response.receipts]


async def test_training_runs_each_actor_once_and_answers_by_index():
    recorder, receipts = await run(actors=3, episodes=99)
    assert receipts == [0, 1, 2]
    assert recorder.wanted == 3
    assert [(task, timeout_s) for task, _, timeout_s in recorder.tasks] == [(f"j/3/train/{i}", 7.0) for i in range(3)]
    assert [task.episodes for _, task, _ in recorder.tasks] == [0, 0, 0]


CARRIED = RolloutSettings(env="e", envs=4, steps=5, timeout_s=7.0, carried=True)
LANE = Lane(lane=1, version=3, digest="0a" * 32)


async def test_lanes_go_to_the_actors_of_their_index_and_prefer_their_worker():
    recorder, _ = await run(actors=3, settings=CARRIED, lanes=[LANE])
    lanes = {task.index: task.lane for _, task, _ in recorder.tasks}
    assert lanes == {0: Lane(), 1: LANE, 2: Lane()}
    assert sorted(recorder.affinities) == ["j/0", "j/1", "j/2"]
    recorder, _ = await run(actors=3)
    assert recorder.affinities == ["", "", ""]


@pytest.mark.parametrize(
    ("lanes", "fields", "problem"),
    [
        ([LANE, LANE], {}, "given twice"),
        ([Lane(lane=2, version=1, digest=LANE.digest)], {}, "the index of a lane is 2; 0 to 1"),
        ([Lane(lane=-1, version=1, digest=LANE.digest)], {}, "the index of a lane is -1"),
        ([Lane(lane=0, digest=LANE.digest)], {}, "version of lane 0 is 0"),
        ([Lane(lane=0, version=1, digest="0A" * 32)], {}, "lane 0: its digest is no SHA-256"),
        ([LANE] * 3, {}, "lanes is 3; 0 to 2"),
        ([LANE], {"settings": SETTINGS}, "lanes is 1; 0 to 0"),
        ([], {"mode": ROLLOUT_MODE_GREEDY, "episodes": 3}, "carried only in mode TRAIN"),
    ],
)
async def test_lanes_that_cannot_be_are_refused(lanes, fields, problem):
    with pytest.raises(SpecError, match=problem):
        await run(**{"actors": 2, "settings": CARRIED, "lanes": lanes} | fields)


@pytest.mark.parametrize("mode", [ROLLOUT_MODE_GREEDY, ROLLOUT_MODE_RANDOM])
@pytest.mark.parametrize(("episodes", "shares"), [(7, [3, 2, 2]), (3, [1, 1, 1]), (2, [1, 1]), (0, [])])
async def test_episodes_are_shared_out_exactly(mode, episodes, shares):
    recorder, _ = await run(mode=mode, actors=3, episodes=episodes)
    assert [task.episodes for _, task, _ in recorder.tasks] == shares


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": 0, "actors": 1},
        {"mode": 9, "actors": 1},
        {"actors": 0},
        {"actors": -1},
        {"actors": 4097},
        {"actors": 1, "settings": RolloutSettings(envs=0, steps=5, timeout_s=1)},
        {"actors": 1, "settings": RolloutSettings(envs=4, steps=0, timeout_s=1)},
        {"actors": 1, "settings": RolloutSettings(envs=4, steps=5, timeout_s=0)},
    ],
)
async def test_requests_that_cannot_work_are_refused(fields):
    with pytest.raises(SpecError, match=r"a rollout('s| needs)"):
        await run(**fields)


class Workers:
    """A real dispatcher with workers that answer at once, in this process."""

    @property
    def size(self) -> int:
        return len(self.dispatcher.connected)

    def __init__(self) -> None:
        self.dispatcher = Dispatcher()
        self.most_queued = 0
        self.ran: list[str] = []
        self.together = asyncio.Barrier(1)

    async def ensure(self, workers: int) -> None: ...

    async def serve(self, name: str) -> None:
        asked: asyncio.Queue[PoolMessage] = asyncio.Queue()
        ticket = self.dispatcher.launching(name)

        async def messages() -> AsyncIterator[WorkerMessage]:
            yield WorkerMessage(hello=WorkerHello(worker=name, ticket=ticket))
            while True:
                task = (await asked.get()).task
                self.most_queued = max(self.most_queued, self.dispatcher.queued)
                self.ran.append(task.id.partition("/")[0])
                await self.together.wait()
                receipt = RolloutReceipt(index=RolloutTask.FromString(task.payload).index).SerializeToString()
                yield WorkerMessage(result=TaskResult(id=task.id, attempt=task.attempt, payload=receipt))

        await self.dispatcher.attach(messages(), asked.put)


async def test_rollouts_larger_than_the_queue_wait_in_it_and_all_succeed():
    """Red before: of two jobs with 2,500 actors each, the second was refused; a rollout may have 4,096."""
    workers = Workers()
    rollouts = Rollouts(workers.dispatcher, workers)
    serving = [asyncio.create_task(workers.serve(name)) for name in "ab"]
    sizes = {"a": 2500, "b": 2500, **{f"small-{index}": 2 for index in range(20)}}
    requests = [
        RolloutRequest(job=job, settings=SETTINGS, mode=ROLLOUT_MODE_TRAIN, actors=actors)
        for job, actors in sizes.items()
    ]
    async with asyncio.timeout(30):
        responses = await asyncio.gather(*map(rollouts.run, requests))
    assert [len(response.receipts) for response in responses] == list(sizes.values())
    assert [receipt.index for receipt in responses[0].receipts] == list(range(2500))
    assert workers.most_queued <= 2 * WINDOW + 2 * 20
    first_b, last_small = workers.ran.index("b"), max(at for at, job in enumerate(workers.ran) if job.startswith("sm"))
    assert (first_b < 10, last_small < 1000) == (True, True), "jobs take turns"
    for each in serving:
        each.cancel()


async def test_a_rollout_uses_all_workers_of_a_large_pool_at_once():
    """Red before: 256 of a rollout's actors ran at once, however many workers there were."""
    workers = Workers()
    rollouts, several = Rollouts(workers.dispatcher, workers), 2 * WINDOW + 10
    workers.together = asyncio.Barrier(several)  # a task ends only once as many run as there are workers
    serving = [asyncio.create_task(workers.serve(f"w-{index}")) for index in range(several)]
    await workers.dispatcher.connected.present([f"w-{index}" for index in range(several)])
    request = RolloutRequest(job="a", settings=SETTINGS, mode=ROLLOUT_MODE_TRAIN, actors=several)
    async with asyncio.timeout(30):
        assert len((await rollouts.run(request)).receipts) == several
    for each in serving:
        each.cancel()


async def test_many_rollouts_of_one_actor_run_at_once_and_start_as_many_workers():
    """Red before: sixteen rollouts ran at once, and each asked for one worker."""
    workers, asked = Workers(), []

    async def ensure(count: int) -> None:
        asked.append(count)

    workers.ensure = ensure
    rollouts, several = Rollouts(workers.dispatcher, workers), 64
    workers.together = asyncio.Barrier(several)  # a task ends only once all run
    serving = [asyncio.create_task(workers.serve(f"w-{index}")) for index in range(several)]
    await workers.dispatcher.connected.present([f"w-{index}" for index in range(several)])
    requests = [
        RolloutRequest(job="a", round=number, settings=SETTINGS, mode=ROLLOUT_MODE_TRAIN, actors=1)
        for number in range(several)
    ]
    async with asyncio.timeout(30):
        assert all(len(each.receipts) == 1 for each in await asyncio.gather(*map(rollouts.run, requests)))
        workers.together = asyncio.Barrier(1)
        await rollouts.run(requests[0])
    assert (max(asked), asked[-1]) == (several, 1)
    for each in serving:
        each.cancel()


async def test_places_are_given_in_order_of_arrival_and_come_back():
    places, order = _Places(4), []

    async def hold(name: str, actors: int, end: asyncio.Event) -> None:
        async with places.of(actors):
            order.append(name)
            await end.wait()

    first, rest = asyncio.Event(), asyncio.Event()
    holding = [asyncio.create_task(hold(*each)) for each in (("a", 3, first), ("b", 4, rest), ("c", 1, rest))]
    given_up = asyncio.create_task(hold("given up", 4, rest))
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == ["a"]  # "c" would fit, and waits behind "b"
    given_up.cancel()
    first.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert order == ["a", "b"]
    rest.set()
    await asyncio.gather(*holding)
    async with places.of(4):
        assert order == ["a", "b", "c"]


async def test_more_rollouts_than_the_queue_has_room_for_wait_for_one_of_them_to_end():
    """No worker is there: all of their actors that may wait in the queue do so, and none is refused."""
    workers, most = Workers(), MAX_UNDER_WAY // MAX_ACTORS
    rollouts = Rollouts(workers.dispatcher, workers)
    requests = [
        RolloutRequest(job=f"job-{index}", settings=SETTINGS, mode=ROLLOUT_MODE_TRAIN, actors=MAX_ACTORS)
        for index in range(most + 4)
    ]
    running = [asyncio.create_task(rollouts.run(request)) for request in requests]
    for _ in range(20):
        await asyncio.sleep(0)
    assert (workers.dispatcher.queued, [each for each in running if each.done()]) == (
        most * WINDOW,
        [],
    )
    for each in running:
        each.cancel()
    await asyncio.wait(running)
    assert workers.dispatcher.queued == 0
