"""Computes gradients on demand, several of a job at once: one task per scope, on any free learner worker.

For schedules without rounds: a learner takes some rollouts, computes one gradient of every policy at given versions,
and puts it into the store, where it is applied. Weights do not change here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from marless.core.errors import StaleError
from marless.core.limits import check_id
from marless.rpc.param_store import ParamStore
from marless.rpc.requests import check_groups, check_number
from marless.rpc.v1 import learner_pool_pb2 as pb
from marless.services.learner_pool.stored_results import published_gradient
from marless.services.learner_pool.tasks import (
    Computing,
    LearnTasks,
    OpenJob,
    by_scope,
    check_rollouts,
    check_versions,
    join,
)
from marless.services.learner_pool.trajectory_buffer import TrajectoryBuffer, TrajectoryFile

MAX_PEERS = 64
"""Other learners over which one gradient's ratios are truncated."""
Request = pb.GradientRequest


class Gradients:
    """The gradients of a learner pool's open jobs."""

    def __init__(self, buffer: TrajectoryBuffer, tasks: LearnTasks, store: ParamStore) -> None:
        self._buffer = buffer
        self._tasks = tasks
        self._store = store
        self._tasks_under_way = 0

    async def gradient(self, request: Request) -> pb.GradientResponse:
        """Compute one gradient of every policy; a repeated request waits for the first one, or finds its result.

        Raises NotFoundError for a job that is not open and for a version that is gone, FencedError, StaleError for
        missing trajectories, ConflictError if the same learner is then asked for another gradient.
        """
        _check(request)
        known = self._tasks.job(request.job)
        self._buffer.check_epoch(request.job, request.epoch)
        compute = partial(self._once, known, request)
        return await known.gradients.result(request.learner, inputs_of(request), request.epoch, compute)

    async def _once(
        self, known: OpenJob, request: Request, before: Computing[pb.GradientResponse] | None
    ) -> pb.GradientResponse:
        """Compute a gradient unless the store has it, after the same learner's earlier one has ended."""
        if before:
            if before.key != inputs_of(request):
                before.task.cancel()  # nobody needs it
            await before.end()
        tasks = _tasks(known, request)
        try:
            files = self._buffer.rollouts(request.job, request.rollouts)
        except StaleError:  # also if they are dropped because the gradient is there
            results = await self._published(tasks)
            if results is None:
                raise
        else:
            results = await self._run(tasks, files)
            known.charge(results)
        # Not before the gradient is in the store: until then a lost worker's task needs them.
        self._buffer.used(request.job, request.rollouts, request.oldest)
        response = join(pb.GradientResponse(), results)
        response.gradients.extend(result.gradient for result in results)
        return response

    async def _published(self, tasks: Sequence[pb.LearnTask]) -> list[pb.LearnResult] | None:
        """The results of all tasks if the store has all of them, else None."""
        results = []
        for task in tasks:
            result = await published_gradient(self._store, task)
            if result is None:
                return None
            results.append(result)
        return results

    async def _run(self, tasks: Sequence[pb.LearnTask], files: Sequence[TrajectoryFile]) -> list[pb.LearnResult]:
        self._tasks_under_way += len(tasks)
        try:
            # As many workers as all gradients under way have tasks, so that those of one learner do not wait for
            # another's.
            return await self._tasks.run(tasks, "gradient", files, workers=self._tasks_under_way)
        finally:
            self._tasks_under_way -= len(tasks)


def inputs_of(request: Request) -> Request:
    """The fields of a request by which a repetition is recognised."""
    inputs = Request(
        job=request.job,
        learner=request.learner,
        rollouts=request.rollouts,
        groups=request.groups,
        versions=request.versions,
    )
    # A coordinator that takes the job over may list them in another order.
    inputs.versions.sort(key=lambda version: version.policy)
    return inputs


def _check(request: Request) -> None:
    check_id(request.job)
    numbers = ("epoch", "learner", "env_steps", "oldest")
    for what in numbers:
        check_number(what, getattr(request, what))
    check_rollouts(request.rollouts)
    check_groups(request.groups)
    for group in request.groups:
        check_number(f"the version of policy {group.policy}", group.source.version, 1)
    check_versions(request.versions, 1)
    check_number("the number of peers", len(request.peers), 0, MAX_PEERS)
    for peer in request.peers:
        check_versions(peer.versions, 1)


def _tasks(known: OpenJob, request: Request) -> list[pb.LearnTask]:
    """One task for each scope; raises SpecError for invalid groups."""
    gradient = pb.GradientTask(learner=request.learner, rollouts=request.rollouts, peers=request.peers)
    task = pb.LearnTask(
        job=request.job,
        spec_json=known.spec_json,
        spaces_json=known.spaces_json,
        round=request.learner,
        epoch=request.epoch,
        env_steps=request.env_steps,
        groups=request.groups,
        versions=request.versions,
        gradient=gradient,
        measure=request.measure,
    )
    return by_scope(known, task)
