"""Opens and closes jobs, and runs their updates: one task per scope for a learner worker; merges their results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from marless.core.errors import FencedError, OverloadedError, StaleError
from marless.core.limits import MAX_ACTORS, MAX_COUNT, MAX_KEPT, check_id
from marless.core.log import structlog
from marless.jobs.job import replay_of, schema_of
from marless.jobs.schedules.base import made
from marless.jobs.spec import from_json, spaces_from_json
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes as scopes_of
from marless.rpc.param_store import ParamStore
from marless.rpc.requests import check_groups, check_number
from marless.rpc.v1 import learner_pool_pb2 as pb
from marless.services.learner_pool import stored_results
from marless.services.learner_pool.replays import Replays
from marless.services.learner_pool.tasks import (
    Answered,
    Computations,
    Computing,
    LearnTasks,
    OpenJob,
    UpdateResultCache,
    by_scope,
    check_published,
    check_rollouts,
    check_versions,
    join,
    other_groups,
)
from marless.services.learner_pool.trajectory_buffer import Opening, TrajectoryBuffer

REPLAY_WAIT_S = 30.0
"""Seconds that opening a job waits for room for its replay files, before it raises OverloadedError."""
_log = structlog.get_logger("learner_pool")


class Updates:
    """Opens and closes the jobs of a learner pool, and runs their updates."""

    def __init__(self, buffer: TrajectoryBuffer, replays: Replays, tasks: LearnTasks, store: ParamStore) -> None:
        self._buffer = buffer
        self._replays = replays
        self._tasks = tasks
        self._store = store

    async def open(self, request: pb.OpenJobRequest) -> pb.OpenJobResponse:
        """Open a job: accept its trajectories, and publish a first version of each policy that has none.

        Raises FencedError if a newer epoch has begun, SpecError for an invalid spec or groups, and the errors of
        `Replays.open`.
        """
        check_id(request.job)
        check_groups(request.groups)
        check_number("epoch", request.epoch)
        check_number("round", request.round)
        check_number("opening", request.opening)
        spec, spaces = await asyncio.to_thread(
            lambda: (from_json(request.spec_json), spaces_from_json(request.spaces_json))
        )
        await self._check_newest(request.job, request.epoch)
        known = self._tasks.jobs.get(request.job)
        # Results that were computed by another spec must not answer for this one.
        if known is None or known.spec_json != request.spec_json:
            self._release_results(request.job)
            scopes = scopes_of(registry.algorithm(spec.algorithm.name), spec.algorithm, spaces)
            computed = UpdateResultCache(request.job, self._store, self._buffer)
            replays = {each.name: replay for each in scopes if (replay := replay_of(spec, spaces, each))}
            self._tasks.jobs[request.job] = OpenJob(
                request.spec_json,
                spec.learner.timeout_s,
                request.spaces_json,
                spaces,
                scopes,
                replays,
                computed,
                updates=Computations(request.job, "update"),
                gradients=Computations(request.job, "gradient of learner"),
            )
        opened = self._tasks.jobs[request.job]
        schema, schedule = schema_of(spec, spaces), spec.schedule
        ahead = MAX_COUNT if schedule.overlapping else made(schedule).ahead
        opening = Opening(request.opener, request.opening)
        self._buffer.open(request.job, schema, epoch=request.epoch, round_=request.round, ahead=ahead, opening=opening)
        sizes = {scope: schema.file_bytes(capacity) for scope, (schema, capacity) in opened.replays.items()}
        self._buffer.reservations.check(request.job, spec.actors.count, sum(sizes.values()))
        await self._open_replays(request.job, sizes)
        tasks = by_scope(
            opened,
            pb.LearnTask(
                job=request.job,
                spec_json=request.spec_json,
                spaces_json=request.spaces_json,
                epoch=request.epoch,
                groups=request.groups,
            ),
        )
        results = await self._tasks.run(tasks, "open")
        for each in (result.functions[0] for result in results):
            if each.cold:
                opened.starts[each.index] = each
        device = results[0].device
        _log.info("job.opened", job=request.job, device=device, policies=sum(len(r.versions) for r in results))
        return pb.OpenJobResponse(versions=[v for r in results for v in r.versions], device=device)

    async def _check_newest(self, job: str, epoch: int) -> None:
        """Raise FencedError for an older epoch than the job's, unless it is the store's present epoch: a store that has
        lost its data counts epochs from 1 again.
        """
        newest = self._buffer.epoch(job)
        if epoch < newest and epoch != (await self._store.list(job)).epoch:
            raise FencedError(f"epoch {epoch} of job {job} is over: epoch {newest} has begun")

    async def _open_replays(self, job: str, sizes: dict[str, int]) -> None:
        try:
            self._replays.open(job, sizes)
        except OverloadedError:
            budget, missing = self._buffer.budget, self._replays.missing_bytes(job, sizes)
            await budget.take(job, missing, wait_s=REPLAY_WAIT_S)
            budget.hold(job, -missing)  # the files count from now on
            self._replays.open(job, sizes)

    async def update(self, request: pb.UpdateRequest) -> pb.UpdateResponse:
        """Update every policy of a job once; idempotent: a repeated request gets, or waits for, the first one's reply.

        Raises NotFoundError for a job that is not open, FencedError, StaleError for a round that has passed or whose
        trajectories are missing, ConflictError for a round that was published for other groups or from other rollouts.
        """
        _check_update(request)
        known = self._tasks.job(request.job)
        self._buffer.check_epoch(request.job, request.epoch)
        # All under one number: a job's updates follow one another.
        compute = partial(self._once, known, request)
        return await known.updates.result(0, stored_results.update_key(request), request.epoch, compute)

    async def _once(
        self, known: OpenJob, request: pb.UpdateRequest, before: Computing[pb.UpdateResponse] | None
    ) -> pb.UpdateResponse:
        """Run the update unless it has been done, after the job's update in progress has ended."""
        if before:
            await before.end()
        if known.last and request.round < known.last.request.round:
            raise StaleError(f"job {request.job}: round {request.round + 1} has passed")
        response = await self._answered(known, request) or await self._earlier(known, request)
        response = response or await self._update(known, request)
        known.last = Answered(request, response)
        if request.rollouts:
            self._buffer.used(request.job, request.rollouts, request.oldest)
        else:
            response.room = self._buffer.advance(request.job, request.round + 1)
        return response

    async def _answered(self, known: OpenJob, request: pb.UpdateRequest) -> pb.UpdateResponse | None:
        """The reply to this update if this pool has it, and the store still has its versions; else None."""
        if known.last is None or known.last.request.round != request.round:
            return None
        before, key = known.last, stored_results.update_key(request)
        if key != stored_results.update_key(before.request):
            return None
        if before.request.epoch != request.epoch:
            if not await stored_results.are_stored(self._store, request.job, key, before.response):
                return None
            if before.request.groups != request.groups:
                raise other_groups(request.job, request.round)
        return before.response

    async def _earlier(self, known: OpenJob, request: pb.UpdateRequest) -> pb.UpdateResponse | None:
        """The reply to this update from the store, if it was published before the job was opened here; else None."""
        # The usual case, in which the store need not be asked: had a worker of this pool published the round, and been
        # lost, the next worker would find that.
        if known.last and known.last.request.round == request.round - 1:
            return None
        task = pb.LearnTask(groups=request.groups)
        done, key = [], stored_results.update_key(request)
        for of_class in by_scope(known, task):
            policies = [group.policy for group in of_class.groups]  # not those of policies that no agent uses now
            result = await stored_results.published_update(self._store, request.job, key, policies)
            if result is None:
                return None
            done.append(result)
        return _response(done)

    async def close(self, request: pb.CloseJobRequest) -> None:
        """Close a job, cancel its update and gradients, and drop its replay files unless `keep_replay`.

        Calling it twice is safe.

        Raises FencedError if a newer epoch has begun.
        """
        check_number("epoch", request.epoch)
        if request.epoch:
            await self._check_newest(request.job, request.epoch)
        self._release_results(request.job)
        if not request.keep_replay:
            self._replays.close(request.job)

    def _release_results(self, job: str) -> None:
        known = self._tasks.jobs.pop(job, None)
        for task in known.under_way if known else ():
            task.cancel()
        self._buffer.close(job)
        self._replays.evict(job)

    async def stop(self) -> None:
        """Cancel all updates and gradients; calling it twice is safe."""
        tasks = [task for known in self._tasks.jobs.values() for task in known.under_way]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _update(self, known: OpenJob, request: pb.UpdateRequest) -> pb.UpdateResponse:
        task = pb.LearnTask(
            job=request.job,
            spec_json=known.spec_json,
            spaces_json=known.spaces_json,
            round=request.round,
            epoch=request.epoch,
            env_steps=request.env_steps,
            groups=request.groups,
            versions=request.versions,
            measure=request.measure,
            rollouts=request.rollouts,
            keep=request.keep,
        )
        results = await self._learn(known, request, task)
        known.charge(results)
        response = _response(results)
        self._replays.used(request.job, {name: each.values for name, each in response.metrics.items()})
        return response

    async def _learn(self, known: OpenJob, request: pb.UpdateRequest, task: pb.LearnTask) -> list[pb.LearnResult]:
        """The result of each scope; those that were computed from the same inputs before are reused."""
        tasks = by_scope(known, task)
        if request.rollouts:
            files = self._buffer.rollouts(request.job, request.rollouts)
        else:
            files = self._buffer.trajectories(request.job, request.round, request.actors)
        self._buffer.reservations.update(request.job, begins=True)
        try:
            await known.cache.begin(request, files)
            await self._tasks.run([each for each in tasks if each.scope not in known.cache.results], "update", files)
        finally:
            self._buffer.reservations.update(request.job, begins=False)
        results = [known.cache.results[each.scope] for each in tasks]
        check_published(results)
        return results


def _check_update(request: pb.UpdateRequest) -> None:
    if request.rollouts:
        check_rollouts(request.rollouts)
    else:
        check_number("actors", request.actors, 1, MAX_ACTORS)
    for what in ("round", "epoch", "env_steps", "oldest"):
        check_number(what, getattr(request, what))
    check_number("keep", request.keep, 0, MAX_KEPT)
    check_groups(request.groups)
    check_versions(request.versions)


def _response(results: Sequence[pb.LearnResult]) -> pb.UpdateResponse:
    """The reply to an update with these results of its scopes."""
    response = join(pb.UpdateResponse(), results)
    for result in results:
        response.versions.extend(result.versions)
    return response
