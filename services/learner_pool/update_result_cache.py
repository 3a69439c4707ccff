"""Keeps the results of a round's update per scope, so that a repeated request does not compute them again.

An update is requested again by the next coordinator, under its own epoch, or after the store was unreachable. Results
that the store has not taken are then published from their files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from marless.core.errors import ConflictError
from marless.core.log import structlog
from marless.rpc.errors import by_name
from marless.rpc.param_store import ParamStore
from marless.rpc.v1 import learner_pool_pb2
from services.learner_pool import unpublished, update_results
from services.learner_pool.trajectory_buffer import TrajectoryBuffer, TrajectoryFile

_log = structlog.get_logger("learner_pool")
Result = learner_pool_pb2.LearnResult


class UpdateResultCache:
    """The results of one open job. Their files count as files of the round, and are dropped with its trajectories."""

    def __init__(self, job: str, store: ParamStore, buffer: TrajectoryBuffer) -> None:
        self._job = job
        self._store = store
        self._buffer = buffer
        self._request = learner_pool_pb2.UpdateRequest()
        self._checksums: list[int] = []
        self._epoch = self._keep = 0
        self.results: dict[int, Result] = {}
        """Results by index of the scope."""
        self._spares: dict[int, Path] = {}
        """The files with what the store has not taken, by index of the scope."""

    async def begin(self, request: learner_pool_pb2.UpdateRequest, trajectories: Iterable[TrajectoryFile]) -> None:
        """Keep the results that have the same inputs as this request, publish unpublished ones, drop all others.

        Raises ConflictError if the round was published, in whole or in part, for other groups.
        """
        inputs, checksums = inputs_of(request), [file.header.crc32 for file in trajectories]
        # Trajectories that were sampled again are equal as a rule, and then the result is that of the first ones.
        if (inputs, checksums) != (self._request, self._checksums):
            self._check_groups(inputs)
            self._drop_all()
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
        elif unpublished.is_whole(result.unpublished, spare) and self._buffer.keep(self._job, spare):
            self._spares[scope] = spare
        self.results[scope] = result

    def _check_groups(self, inputs: learner_pool_pb2.UpdateRequest) -> None:
        published = any(result.versions for result in self.results.values())
        if published and inputs.round == self._request.round and inputs.groups != self._request.groups:
            raise other_groups(self._job, inputs.round)

    def _drop_all(self) -> None:
        for spare in self._spares.values():
            self._buffer.discard(self._job, spare)
        self.results, self._spares = {}, {}

    async def _drop_lost(self) -> None:
        """Drop results whose versions are no longer in the store, as after a restore by another coordinator."""
        for scope, result in list(self.results.items()):
            if result.versions and not await update_results.are_stored(
                self._store, self._job, update_results.key_of(self._request), result
            ):
                del self.results[scope]

    async def _publish(self, scope: int, result: Result) -> None:
        left, spare = result.unpublished, self._spares[scope]
        try:
            versions = await unpublished.publish(
                self._store,
                job=self._job,
                epoch=self._epoch,
                round_=self._request.round,
                left=left,
                spare=spare,
                keep=self._keep,
            )
        except unpublished.PASSING as error:
            left.error_code, left.error = type(error).__name__, str(error)
            return
        result.MergeFrom(update_results.result(versions))
        self._buffer.discard(self._job, self._spares.pop(scope))
        result.ClearField("unpublished")


def check_published(results: Iterable[Result]) -> None:
    """Raise the error for which the store refused one of these results, if there is one."""
    for result in results:
        if result.HasField("unpublished"):
            raise by_name(result.unpublished.error_code, result.unpublished.error)


def inputs_of(request: learner_pool_pb2.UpdateRequest) -> learner_pool_pb2.UpdateRequest:
    """The fields of a request that determine its result: all but the epoch, and what is to be kept."""
    inputs = learner_pool_pb2.UpdateRequest()
    inputs.CopyFrom(request)
    for field in ("epoch", "oldest", "keep"):
        inputs.ClearField(field)
    inputs.versions.sort(key=lambda version: version.policy)
    return inputs


def other_groups(job: str, round_: int) -> ConflictError:
    """The error for a coordinator whose groups differ from those of the coordinator before it."""
    return ConflictError(
        f"job {job}: round {round_ + 1} was published for other groups than it is asked for now; resume from a "
        "checkpoint"
    )
