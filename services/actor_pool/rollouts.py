"""Rollouts: runs the actors of one round or evaluation on workers, and collects their receipts in order of index.

Episodes that measure a job but do not train it run on the background worker: one process of the lowest CPU priority.
It does not count as one of the pool's `--actor-workers`, so that no actor waits for it. While all CPUs are busy, it
gets hardly any CPU time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from marless.core.documents import MAX_CHARACTERS
from marless.core.errors import SpecError
from marless.core.limits import MAX_ACTORS, MAX_COUNT, MAX_ENVS, MAX_EPISODES, MAX_STEPS, MAX_TIMEOUT_S, check_id
from marless.core.stopwatch import Stopwatch
from marless.fleet.dispatch import QUEUE_LIMIT, Dispatcher
from marless.fleet.fleet import Fleet
from marless.fleet.launchers.base import Launcher
from marless.fleet.machines import MachineAccounts
from marless.rpc.concurrency import gather
from marless.rpc.requests import check_groups, check_number, check_text, message
from marless.rpc.v1 import actor_pool_pb2, common_pb2

WINDOW = 256
"""Actors of one rollout that are queued or run at once, if the pool has no more workers; the others follow as these
finish."""
MAX_UNDER_WAY = QUEUE_LIMIT
"""Actors of all rollouts that run at once; further rollouts wait, so that the task queue has room for all of them."""
_DIGEST = re.compile("[0-9a-f]{64}")
_FUNCTION = {
    actor_pool_pb2.ROLLOUT_MODE_TRAIN: "actor",
    actor_pool_pb2.ROLLOUT_MODE_GREEDY: "evaluation",
    actor_pool_pb2.ROLLOUT_MODE_RANDOM: "evaluation",
}
PREFIX = "background"
"""Of the ids of background workers, and of no others."""
ATTEMPTS = 3
"""Workers that a batch of episodes may lose; without them a job goes on, and only lacks its random baseline."""
KEEP_ALIVE_S = 10.0
"""Seconds that it stays idle at most: it takes 65 MB, and is needed once per job."""


class _Places:
    """A number of actors that may be under way; rollouts get places for all of theirs, in order of arrival."""

    def __init__(self, free: int) -> None:
        self._free = free
        self._first = asyncio.Lock()
        """Held by the rollout that is next; the others wait behind it."""
        self._left = asyncio.Event()

    @asynccontextmanager
    async def of(self, actors: int) -> AsyncIterator[None]:
        """Hold places for so many actors while the context lasts; waits for them."""
        async with self._first:
            while self._free < actors:
                self._left.clear()
                await self._left.wait()
            self._free -= actors
        try:
            yield
        finally:
            self._free += actors
            self._left.set()


class Rollouts:
    """Runs rollout requests as tasks for workers, one per actor."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet) -> None:
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._places = _Places(MAX_UNDER_WAY)
        self._single = 0
        """Rollouts of one actor that are under way."""

    async def run(self, request: actor_pool_pb2.RolloutRequest) -> actor_pool_pb2.RolloutResponse:
        """Run all actors of the request; the first error ends the rollout and is raised.

        Raises SpecError for an invalid request.
        """
        actors = _actors(request)
        async with self._places.of(actors), self._counted(actors):
            self._dispatcher.machines.want(request.job)
            others = self._dispatcher.tenancy.busy_for_others(request.job)
            # Workers that run tasks of other jobs are of no use to this one, so its own come on top of them.
            await self._fleet.ensure(max(actors + others, self._single))
            queued, indices = Stopwatch.start(), iter(range(actors))
            lanes = {lane.lane: lane for lane in request.lanes}
            window = min(actors, max(WINDOW, self._fleet.size))
            windows = (self._run_some(request, actors, lanes, indices, queued) for _ in range(window))
            done = {index: result for some in await gather(windows) for index, result in some}
        results = [done[index] for index in range(actors)]
        return actor_pool_pb2.RolloutResponse(
            receipts=[
                message(actor_pool_pb2.RolloutReceipt, result.payload, "an actor's receipt") for result in results
            ],
            invocations=[each for result in results for each in (result.invocation, *result.lost)],
        )

    @asynccontextmanager
    async def _counted(self, actors: int) -> AsyncIterator[None]:
        """Count a rollout of one actor: schedules without rounds start many of them, one by one, to run at once."""
        single = actors == 1
        self._single += single
        try:
            yield
        finally:
            self._single -= single

    async def _run_some(
        self,
        request: actor_pool_pb2.RolloutRequest,
        actors: int,
        lanes: Mapping[int, actor_pool_pb2.Lane],
        indices: Iterator[int],
        queued: Stopwatch,
    ) -> list[tuple[int, common_pb2.TaskResult]]:
        """Run one actor after the other, until `indices`, which all windows share, is exhausted."""
        mode = actor_pool_pb2.RolloutMode.Name(request.mode).removeprefix("ROLLOUT_MODE_").lower()
        results = []
        for index in indices:
            result = await self._dispatcher.run(
                f"{request.job}/{request.round}/{mode}/{index}",
                partial(_payload, request, actors, index, lanes.get(index)),
                timeout_s=request.settings.timeout_s,
                setting="actors.timeout_s",
                # The worker of the round before still has the environment copies of this lane.
                affinity=f"{request.job}/{index}" if request.settings.carried else "",
                queued=queued,
            )
            for each in (result.invocation, *result.lost):
                each.function, each.index = _FUNCTION[request.mode], index
            results.append((index, result))
        return results


def _check(request: actor_pool_pb2.RolloutRequest) -> None:
    settings = request.settings
    check_id(request.job)
    for what, value, least, most in (
        ("round", request.round, 0, MAX_COUNT),
        ("seed", settings.seed, 0, MAX_COUNT),
        ("epoch", settings.epoch, 0, MAX_COUNT),
        ("envs", settings.envs, 1, MAX_ENVS),
        ("steps", settings.steps, 1, MAX_STEPS),
        ("timeout_s", settings.timeout_s, 1e-3, MAX_TIMEOUT_S),
        ("episodes", request.episodes, 0, MAX_EPISODES),
        ("limit_s", settings.limit_s, 0, MAX_TIMEOUT_S),
        ("relative_error", settings.relative_error, 0, 1),
    ):
        check_number(f"a rollout's {what}", value, least, most)
    check_text("a rollout's env", settings.env)
    if len(settings.env_options_json) > MAX_CHARACTERS:
        raise SpecError(f"a rollout's env_options_json is longer than {MAX_CHARACTERS:,} characters")
    check_groups(request.groups)
    _check_lanes(request)


def _check_lanes(request: actor_pool_pb2.RolloutRequest) -> None:
    """Raise SpecError unless each lane has begun, belongs to another actor of the request, and is to go on."""
    if request.settings.carried and request.mode != actor_pool_pb2.ROLLOUT_MODE_TRAIN:
        raise SpecError("a rollout's episodes are carried only in mode TRAIN")
    check_number("the number of a rollout's lanes", len(request.lanes), 0, request.actors * request.settings.carried)
    for lane in request.lanes:
        check_number("the index of a lane", lane.lane, 0, request.actors - 1)
        check_number(f"the version of lane {lane.lane}", lane.version, 1, MAX_COUNT)
        if not _DIGEST.fullmatch(lane.digest):
            raise SpecError(f"lane {lane.lane}: its digest is no SHA-256")
    if len({lane.lane for lane in request.lanes}) < len(request.lanes):
        raise SpecError("a rollout's lanes: one of them is given twice")


def _actors(request: actor_pool_pb2.RolloutRequest) -> int:
    """The number of actors that the request needs; raises SpecError for an invalid request."""
    if request.mode not in _FUNCTION:
        raise SpecError("a rollout needs a mode: TRAIN, GREEDY or RANDOM")
    if not 1 <= request.actors <= MAX_ACTORS:
        raise SpecError(f"a rollout needs 1 to {MAX_ACTORS} actors, got {request.actors}")
    _check(request)
    train = request.mode == actor_pool_pb2.ROLLOUT_MODE_TRAIN
    return request.actors if train else min(request.actors, request.episodes)


def _payload(
    request: actor_pool_pb2.RolloutRequest, actors: int, index: int, lane: actor_pool_pb2.Lane | None
) -> bytes:
    """The task of one actor, serialised only when a worker takes it, because thousands hold the same settings."""
    share, rest = divmod(request.episodes, actors)
    train = request.mode == actor_pool_pb2.ROLLOUT_MODE_TRAIN
    return actor_pool_pb2.RolloutTask(
        job=request.job,
        round=request.round,
        mode=request.mode,
        index=index,
        settings=request.settings,
        groups=request.groups,
        episodes=0 if train else share + (index < rest),
        actors=actors,
        lane=lane,
    ).SerializeToString()


class Background:
    """The background worker's fleet of one, its queue, and the rollouts on it."""

    def __init__(self, dispatcher: Dispatcher, fleet: Fleet) -> None:
        self.dispatcher = dispatcher
        self.fleet = fleet
        self.rollouts = Rollouts(dispatcher, fleet)

    def launched(self, worker: str) -> bool:
        """True if this is the id of a background worker; no other worker has an id with this prefix."""
        return worker.startswith(f"{PREFIX}-")


@asynccontextmanager
async def background(launcher: Launcher, machines: MachineAccounts, keep_alive_s: float) -> AsyncIterator[Background]:
    """Provide the background worker: it starts when it is needed, and is stopped when the context ends."""
    dispatcher = Dispatcher(max_attempts=ATTEMPTS, machines=machines, apart=True)
    async with Fleet(
        dispatcher,
        launcher,
        prefix=PREFIX,
        limit=1,
        arguments=["--background"],
        keep_alive_s=min(keep_alive_s, KEEP_ALIVE_S),
    ) as fleet:
        yield Background(dispatcher, fleet)
