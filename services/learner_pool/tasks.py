"""The open jobs of a learner pool, and how their tasks run on learner workers: one task per scope of a job.

A scope is an agent class or, for algorithms that learn jointly, all of them. Updates and gradients are such tasks. An
update is requested again by the next coordinator, under its own epoch, or after the store was unreachable: results per
scope are kept, so that they are not computed again, and those that the store has not taken are published from files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from marless.core.errors import ConflictError, NotFoundError, SpecError, shown
from marless.core.limits import MAX_POLICIES, MAX_PUBLISH_BYTES
from marless.core.log import structlog
from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet
from marless.learning.algos.learner import Scope
from marless.learning.data.frame_file import FrameFile, allocate
from marless.learning.data.frames import ReplaySchema
from marless.learning.envs.base import EnvSpaces
from marless.rpc.concurrency import gather
from marless.rpc.errors import by_name
from marless.rpc.param_store import ParamStore
from marless.rpc.refs import Loans, Ref, Write, write_new
from marless.rpc.requests import check_number, message
from marless.rpc.v1 import common_pb2
from marless.rpc.v1 import learner_pool_pb2 as pb
from marless.services.learner_pool import stored_results
from marless.services.learner_pool.replays import Replays
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer, TrajectoryFile

MAX_ROLLOUTS = 4096
"""Rollouts of one gradient or update."""
Response = TypeVar("Response", pb.UpdateResponse, pb.GradientResponse)


@dataclass(frozen=True)
class Answered:
    """A finished update."""

    request: pb.UpdateRequest
    response: pb.UpdateResponse


@dataclass(frozen=True)
class Computing(Generic[Response]):
    """An update or a gradient in progress. It continues if its caller dies, for the coordinator that takes over."""

    key: object
    """What its result depends on: `stored_results.update_key`, or `gradients.inputs_of`."""
    epoch: int
    task: asyncio.Task[Response]

    async def end(self) -> None:
        """Wait until it has succeeded or failed; if the wait is cancelled, because the job is closed, it is, too."""
        try:
            await asyncio.wait([self.task])
        except asyncio.CancelledError:
            self.task.cancel()
            raise


class Computations(Generic[Response]):
    """The updates of a job, or its gradients: those of one number run one after another.

    Args:
        job: The job.
        what: What is computed, for messages.
    """

    def __init__(self, job: str, what: str) -> None:
        self._job = job
        self._what = what
        self._running: dict[int, Computing[Response]] = {}

    @property
    def tasks(self) -> list[asyncio.Task[Response]]:
        """All that is in progress."""
        return [each.task for each in self._running.values()]

    async def result(
        self,
        number: int,
        key: object,
        epoch: int,
        compute: Callable[[Computing[Response] | None], Coroutine[Any, Any, Response]],  # Any: as asyncio has it
    ) -> Response:
        """What `compute` returns; a request that is repeated while it is computed waits for the first one's result.

        `compute` is given what is still in progress under this number, for another key or an earlier epoch. That is not
        joined, but has to be waited for: the store may have refused what it leaves.

        Raises ConflictError if it was cancelled for another one of its number, and NotFoundError if the job was closed.
        """
        running = self._running.get(number)
        if running is None or running.task.done() or (running.key, running.epoch) != (key, epoch):
            task = asyncio.create_task(compute(running))
            running = self._running[number] = Computing(key, epoch, task)
            task.add_done_callback(partial(self._remove, number))
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:
            if not running.task.cancelled():
                raise  # this call was cancelled, and what it waited for goes on
            if self._running.get(number, running) is not running:
                raise ConflictError(f"job {self._job}: another {self._what} {number} is asked for now") from None
            raise NotFoundError(f"job {self._job!r} was closed while it computed its {self._what}") from None

    def _remove(self, number: int, task: asyncio.Task[Response]) -> None:
        if not task.cancelled():
            task.exception()  # heard: nobody may wait for it any more
        # Another one may have taken its place.
        if (running := self._running.get(number)) and running.task is task:
            del self._running[number]


@dataclass
class OpenJob:
    """A job that is open in this learner pool."""

    spec_json: str
    timeout_s: float
    """Timeout of a task in seconds."""
    spaces_json: str
    spaces: EnvSpaces
    scopes: tuple[Scope, ...]
    replays: dict[str, tuple[ReplaySchema, int]]
    """Frames of the replay and their number, by name of the scope."""
    cache: UpdateResultCache
    updates: Computations[pb.UpdateResponse]
    gradients: Computations[pb.GradientResponse]
    """By number of the learner."""
    last: Answered | None = None
    """The newest finished update since the job was opened here."""
    starts: dict[int, common_pb2.Invocation] = field(default_factory=dict)
    """By scope, the first invocations of learners that were started to open the job. Their starts are charged to the
    first task."""

    def charge(self, results: Sequence[pb.LearnResult]) -> None:
        """Put start-up time into the first tasks' invocations, because opening a job is not billed."""
        for each in (result.functions[0] for result in results):
            if first := self.starts.pop(each.index, None):
                each.cold = True
                each.init_s += first.init_s
                each.init_cpu_s += first.init_cpu_s

    @property
    def under_way(self) -> list[asyncio.Task[Any]]:  # Any: updates and gradients have results of their own
        """The job's updates and gradients in progress."""
        return [*self.updates.tasks, *self.gradients.tasks]


class LearnTasks:
    """Runs the tasks of open jobs on the pool's workers."""

    def __init__(
        self, buffer: TrajectoryBuffer, replays: Replays, loans: Loans, dispatcher: Dispatcher, fleet: Fleet
    ) -> None:
        self._buffer = buffer
        self._replays = replays
        self._loans = loans
        self._dispatcher = dispatcher
        self._fleet = fleet
        self.jobs: dict[str, OpenJob] = {}

    def job(self, job: str) -> OpenJob:
        """An open job; raises NotFoundError."""
        known = self.jobs.get(job)
        if known is None:
            raise NotFoundError(f"job {shown(job)} is not open in this learner pool")
        return known

    async def run(
        self, tasks: Sequence[pb.LearnTask], verb: str, files: Sequence[TrajectoryFile] = (), *, workers: int = 0
    ) -> list[pb.LearnResult]:
        """The results of tasks that run at once, each with references to `files`, in their order.

        `workers` is the number of workers to start, if it is larger than the number of tasks. `verb` is "open",
        "update" or "gradient". The first error cancels the other tasks and is raised.
        """
        for job in {task.job for task in tasks}:
            self._dispatcher.machines.want(job)
        await self._fleet.ensure(max(len(tasks), workers))
        return await gather(self._run_one(task, verb, files) for task in tasks)

    async def _run_one(self, task: pb.LearnTask, verb: str, files: Sequence[TrajectoryFile]) -> pb.LearnResult:
        known, spare = self.job(task.job), self._buffer.spare()
        what = f"gradient-{task.gradient.learner}" if verb == "gradient" else f"{task.round}/{verb}"
        name = f"{task.job}/{what}/{task.scope}"
        with self._loans.during(name) as lend:
            self._lend(task, files, spare, lend)
            outcome = await self._dispatcher.run(
                name,
                task.SerializeToString,
                timeout_s=known.timeout_s,
                setting="learner.timeout_s",
                # The worker of the last round still holds the states that it published; gradients must spread over many
                # workers.
                affinity="" if verb == "gradient" else f"{task.job}/{task.scope}",
            )
        result = message(pb.LearnResult, outcome.payload, "a learner's result")
        for each in (outcome.invocation, *outcome.lost):
            each.function, each.index = "learner", task.scope
        for each in result.functions:
            each.machine = outcome.invocation.machine
        # In front, where `charge` looks for the invocation to which it adds the time of a start.
        result.functions.insert(0, outcome.invocation)
        result.functions.extend(outcome.lost)
        if verb == "update":
            known.cache.put(task.scope, result, spare)
        return result

    def _lend(
        self,
        task: pb.LearnTask,
        files: Sequence[TrajectoryFile],
        spare: Path,
        lend: Callable[[Path, Write | None], Ref],
    ) -> None:
        """Put references to all files that a task needs into it."""
        known = self.job(task.job)
        scope = known.scopes[task.scope].name
        for each in files:
            task.trajectories.add(header=each.header, file=lend(each.path, None))
        if replay := self._replays.path(task.job, scope):
            schema, capacity = known.replays[scope]
            allocate(replay, schema.file_bytes(capacity))  # if it was removed by hand: what it held counts as lost
            # For a worker that does not see the file; it is opened only when frames come.
            task.replay.CopyFrom(
                lend(replay, lambda ranges, content: FrameFile(schema, capacity, replay).put(ranges, content))
            )
        if not task.HasField("gradient"):
            task.spare.CopyFrom(lend(spare, partial(write_new, spare, MAX_PUBLISH_BYTES)))


def by_scope(known: OpenJob, job: pb.LearnTask) -> list[pb.LearnTask]:
    """One task per scope, with the groups of its classes and all versions; raises SpecError for invalid groups."""
    spaces = known.spaces
    if strangers := [agent for group in job.groups for agent in group.agents or [""] if agent not in spaces.agents]:
        raise SpecError(f"groups hold {strangers}, which are no agents of the job's environment")
    for group in job.groups:
        if any(spaces.class_of(agent) != spaces.class_of(group.agents[0]) for agent in group.agents):
            raise SpecError(f"the group of policy {group.policy!r} holds agents of several classes")
    tasks = []
    for scope in known.scopes:
        agents = {agent for each in scope.agent_classes(spaces) for agent in each.agents}
        task = pb.LearnTask()
        task.CopyFrom(job)
        task.scope = scope.index
        del task.groups[:]
        task.groups.extend(group for group in job.groups if group.agents[0] in agents)
        tasks.append(task)
    return tasks


def check_versions(versions: Sequence[common_pb2.PolicyVersion], least: int = 0) -> None:
    """Raise SpecError for too many versions, or one below `least`."""
    check_number("the number of versions", len(versions), 0, MAX_POLICIES)
    for each in versions:
        check_number(f"the version of policy {shown(each.policy)}", each.version, least)


def check_rollouts(rollouts: Sequence[int]) -> None:
    """Raise SpecError for no rollouts, too many, or one that is given twice."""
    check_number("the number of rollouts", len(rollouts), 1, MAX_ROLLOUTS)
    for rollout in rollouts:
        check_number("the number of a rollout", rollout)
    if len(set(rollouts)) < len(rollouts):
        raise SpecError("rollouts: one of them is given twice")


def join(response: Response, results: Sequence[pb.LearnResult]) -> Response:
    """Put all but the versions of all scopes' results into a response, and return it."""
    response.computed_by.extend(sorted({result.computed_by for result in results if result.computed_by}))
    for result in results:
        response.invocations.extend(result.functions)
        response.distances.extend(result.distances)
        for name, metrics in result.metrics.items():
            response.metrics[name].CopyFrom(metrics)
    return response


_log = structlog.get_logger("learner_pool")
Result = pb.LearnResult


class UpdateResultCache:
    """The results of one open job. Their files count as files of the round, and are dropped with its trajectories."""

    def __init__(self, job: str, store: ParamStore, buffer: TrajectoryBuffer) -> None:
        self._job = job
        self._store = store
        self._buffer = buffer
        self._request = pb.UpdateRequest()
        self._checksums: list[int] = []
        self._epoch = self._keep = 0
        self.results: dict[int, Result] = {}
        """Results by index of the scope."""
        self._spares: dict[int, Path] = {}
        """The files with what the store has not taken, by index of the scope."""

    async def begin(self, request: pb.UpdateRequest, trajectories: Iterable[TrajectoryFile]) -> None:
        """Keep the results that have the same inputs as this request, publish unpublished ones, drop all others.

        Raises ConflictError if the round was published, in whole or in part, for other groups.
        """
        inputs, checksums = inputs_of(request), [file.header.crc32 for file in trajectories]
        # Trajectories that were sampled again are equal as a rule, and then the result is that of the first ones.
        if (inputs, checksums) != (self._request, self._checksums):
            published = any(result.versions for result in self.results.values())
            if published and inputs.round == self._request.round and inputs.groups != self._request.groups:
                raise other_groups(self._job, inputs.round)
            for spare in self._spares.values():
                self._buffer.discard(self._job, spare)
            self.results, self._spares = {}, {}
        elif request.epoch != self._epoch:
            await self._drop_lost()
        self._request, self._checksums, self._epoch, self._keep = inputs, checksums, request.epoch, request.keep
        for scope, result in list(self.results.items()):
            if not result.HasField("unpublished"):
                continue
            if scope in self._spares:
                await self._publish(scope, result)
            else:  # there was no room for it
                del self.results[scope]
        if self.results:
            _log.info("update.not_repeated", job=self._job, round=request.round + 1, scopes=sorted(self.results))

    def put(self, scope: int, result: Result, spare: Path) -> None:
        """Keep the result of one scope. Removes a spare file that an earlier attempt at the task may have left."""
        if not result.HasField("unpublished"):
            spare.unlink(missing_ok=True)
        elif stored_results.is_whole(result.unpublished, spare) and self._buffer.keep(self._job, spare):
            self._spares[scope] = spare
        self.results[scope] = result

    async def _drop_lost(self) -> None:
        """Drop results whose versions are no longer in the store, as after a restore by another coordinator."""
        for scope, result in list(self.results.items()):
            if result.versions and not await stored_results.are_stored(
                self._store, self._job, stored_results.update_key(self._request), result
            ):
                del self.results[scope]

    async def _publish(self, scope: int, result: Result) -> None:
        left, spare = result.unpublished, self._spares[scope]
        try:
            writes = list(stored_results.writes_set_aside(left, spare))
            versions = await self._store.publish(self._job, self._epoch, self._request.round, writes, keep=self._keep)
        except stored_results.PASSING as error:
            left.error_code, left.error = type(error).__name__, str(error)
            return
        result.MergeFrom(stored_results.result_of(versions))
        self._buffer.discard(self._job, self._spares.pop(scope))
        result.ClearField("unpublished")


def check_published(results: Iterable[Result]) -> None:
    """Raise the error for which the store refused one of these results, if there is one."""
    for result in results:
        if result.HasField("unpublished"):
            raise by_name(result.unpublished.error_code, result.unpublished.error)


def inputs_of(request: pb.UpdateRequest) -> pb.UpdateRequest:
    """The fields of a request that determine its result: all but the epoch, and what is to be kept."""
    inputs = pb.UpdateRequest()
    inputs.CopyFrom(request)
    for name in ("epoch", "oldest", "keep"):
        inputs.ClearField(name)
    inputs.versions.sort(key=lambda version: version.policy)
    return inputs


def other_groups(job: str, round_: int) -> ConflictError:
    """The error for a coordinator whose groups differ from those of the coordinator before it."""
    return ConflictError(
        f"job {job}: round {round_ + 1} was published for other groups than it is asked for now; resume from a "
        "checkpoint"
    )
