"""The open jobs of a learner pool, and how their tasks run on learner workers: one task per scope of a job.

A scope is an agent class or, for algorithms that learn jointly, all of them. Updates and gradients are such tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from marless.core.errors import NotFoundError, SpecError, shown
from marless.core.limits import MAX_POLICIES, MAX_PUBLISH_BYTES
from marless.fleet.dispatch import Dispatcher
from marless.fleet.fleet import Fleet
from marless.learning.algos.learner import Scope
from marless.learning.data.frame_file import FrameFile, allocate
from marless.learning.data.frames import ReplaySchema
from marless.learning.envs.base import EnvSpaces
from marless.rpc.concurrency import gather
from marless.rpc.refs import Loans, Ref, Write, write_new
from marless.rpc.requests import check_number, message
from marless.rpc.v1 import common_pb2, learner_pool_pb2
from services.learner_pool.replays import Replays
from services.learner_pool.trajectory_buffer import TrajectoryBuffer, TrajectoryFile
from services.learner_pool.update_result_cache import UpdateResultCache

MAX_ROLLOUTS = 4096
"""Rollouts of one gradient or update."""
_Response = TypeVar("_Response", learner_pool_pb2.UpdateResponse, learner_pool_pb2.GradientResponse)


@dataclass(frozen=True)
class Answered:
    """A finished update."""

    request: learner_pool_pb2.UpdateRequest
    response: learner_pool_pb2.UpdateResponse


@dataclass(frozen=True)
class RunningUpdate:
    """An update in progress. It continues if its caller dies, for the coordinator that takes the job over."""

    key: int | str
    """What its versions are published for; see `update_results.key_of`."""
    epoch: int
    task: asyncio.Task[learner_pool_pb2.UpdateResponse]


@dataclass(frozen=True)
class Computing:
    """A gradient in progress; it continues if its caller dies, too."""

    inputs: learner_pool_pb2.GradientRequest
    """What its result depends on; see `gradients.inputs_of`."""
    epoch: int
    task: asyncio.Task[learner_pool_pb2.GradientResponse]


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
    last: Answered | None = None
    """The newest finished update since the job was opened here."""
    running: RunningUpdate | None = None
    gradients: dict[int, Computing] = field(default_factory=dict)
    """Gradients in progress by number of the learner."""
    starts: dict[int, float] = field(default_factory=dict)
    """By scope, the start-up seconds of learners that were started to open the job; charged to the first task."""

    def charge(self, results: Sequence[learner_pool_pb2.LearnResult]) -> None:
        """Put start-up time into the first tasks' invocations, because opening a job is not billed."""
        for each in (result.functions[0] for result in results):
            if each.index in self.starts:
                each.cold, each.init_s = True, each.init_s + self.starts.pop(each.index)

    def under_way(self) -> Iterator[asyncio.Task[object]]:
        """The job's update and gradients in progress."""
        if self.running:
            yield self.running.task
        yield from (each.task for each in self.gradients.values())


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
        self,
        tasks: Sequence[learner_pool_pb2.LearnTask],
        verb: str,
        files: Sequence[TrajectoryFile] = (),
        *,
        workers: int = 0,
    ) -> list[learner_pool_pb2.LearnResult]:
        """The results of tasks that run at once, each with references to `files`, in their order.

        `workers` is the number of workers to start, if it is larger than the number of tasks. `verb` is "open",
        "update" or "gradient". The first error cancels the other tasks and is raised.
        """
        for job in {task.job for task in tasks}:
            self._dispatcher.machines.want(job)
        await self._fleet.ensure(max(len(tasks), workers))
        return await gather(self._run_one(task, verb, files) for task in tasks)

    async def _run_one(
        self, task: learner_pool_pb2.LearnTask, verb: str, files: Sequence[TrajectoryFile]
    ) -> learner_pool_pb2.LearnResult:
        known, spare = self.jobs[task.job], self._buffer.spare()
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
        result = message(learner_pool_pb2.LearnResult, outcome.payload, "a learner's result")
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
        task: learner_pool_pb2.LearnTask,
        files: Sequence[TrajectoryFile],
        spare: Path,
        lend: Callable[[Path, Write | None], Ref],
    ) -> None:
        """Put references to all files that a task needs into it."""
        known = self.jobs[task.job]
        scope = known.scopes[task.scope].name
        for each in files:
            task.trajectories.add(header=each.header, file=lend(each.path, None))
        if replay := self._replays.path(task.job, scope):
            schema, capacity = known.replays[scope]
            allocate(replay, schema.file_bytes(capacity))  # if it was removed by hand: what it held counts as lost
            task.replay.CopyFrom(lend(replay, partial(_put, schema, capacity, replay)))
        if not task.HasField("gradient"):
            task.spare.CopyFrom(lend(spare, partial(write_new, spare, MAX_PUBLISH_BYTES)))


def by_scope(known: OpenJob, job: learner_pool_pb2.LearnTask) -> list[learner_pool_pb2.LearnTask]:
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
        task = learner_pool_pb2.LearnTask()
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


def join(response: _Response, results: Sequence[learner_pool_pb2.LearnResult]) -> _Response:
    """Put the invocations, metrics and distances of all scopes' results into a response, and return it."""
    for result in results:
        response.invocations.extend(result.functions)
        response.distances.extend(result.distances)
        for name, metrics in result.metrics.items():
            response.metrics[name].CopyFrom(metrics)
    return response


def heard(task: asyncio.Task[object]) -> None:
    """Retrieve a task's exception, as its caller may be gone, and asyncio would log it."""
    if not task.cancelled():
        task.exception()


def _put(schema: ReplaySchema, capacity: int, path: Path, ranges: Sequence[slice], content: memoryview) -> None:
    """Write frames into a replay for a worker that does not see its file."""
    FrameFile(schema, capacity, path).put(ranges, content)
