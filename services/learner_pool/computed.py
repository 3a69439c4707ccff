"""What learners have computed of a job's present round, scope by scope. An update that is asked for again, by the next
coordinator under its own epoch or because the store was away, is published from here and not computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import structlog

from marless.errors import ConflictError
from marless.rpc.errors import by_name
from marless.rpc.param_store import ParamStore
from marless.rpc.v1 import learner_pool_pb2
from services.learner_pool import outcomes, unpublished
from services.learner_pool.intake import Intake

_log = structlog.get_logger("learner_pool")
Result = learner_pool_pb2.LearnResult


class Computed:
    """Of one open job. Its files lie with the trajectories of the round, and go with them."""

    def __init__(self, job: str, store: ParamStore, intake: Intake) -> None:
        self._job = job
        self._store = store
        self._intake = intake
        self._request = learner_pool_pb2.UpdateRequest()
        self._checksums: list[int] = []
        self._epoch = 0
        self.results: dict[int, Result] = {}
        """By scope."""

    async def begin(
        self, request: learner_pool_pb2.UpdateRequest, trajectories: Iterable[learner_pool_pb2.TrajectoryFile]
    ) -> None:
        """Keep what this update would compute again, publish it where it was not, and drop everything else.

        Raises ConflictError for a round that was published, in whole or in part, for other groups.
        """
        inputs, checksums = inputs_of(request), [file.header.crc32 for file in trajectories]
        if (inputs, checksums) != (self._request, self._checksums):
            self._check_groups(inputs)
            self._drop_all()
        elif request.epoch != self._epoch:
            await self._drop_lost()
        self._request, self._checksums, self._epoch = inputs, checksums, request.epoch
        for scope, result in list(self.results.items()):
            if not result.HasField("unpublished"):
                continue
            if result.unpublished.path:
                await self._publish(result)
            else:  # there was no room for it
                del self.results[scope]
        if self.results:
            _log.info("update.not_repeated", job=self._job, round=request.round + 1, scopes=sorted(self.results))

    def put(self, task: learner_pool_pb2.LearnTask, result: Result) -> None:
        """A learner has done its part; one that died before it could tell may have left a file that nobody needs."""
        if not result.HasField("unpublished"):
            Path(task.spare).unlink(missing_ok=True)
        elif not self._intake.keep(self._job, Path(task.spare)):
            result.unpublished.path = ""
        self.results[task.scope] = result

    def _check_groups(self, inputs: learner_pool_pb2.UpdateRequest) -> None:
        published = any(result.versions for result in self.results.values())
        if published and inputs.round == self._request.round and inputs.groups != self._request.groups:
            raise other_groups(self._job, inputs.round)

    def _drop_all(self) -> None:
        for result in self.results.values():
            if result.HasField("unpublished"):
                self._intake.drop(self._job, Path(result.unpublished.path))
        self.results = {}

    async def _drop_lost(self) -> None:
        """Another coordinator may have put back an older state of a store that had lost the job."""
        for scope, result in list(self.results.items()):
            if result.versions and not await outcomes.stand(self._store, self._job, self._request.round, result):
                del self.results[scope]

    async def _publish(self, result: Result) -> None:
        left = result.unpublished
        try:
            versions = await unpublished.publish(self._store, self._job, self._epoch, self._request.round, left)
        except unpublished.PASSING as error:
            left.error_code, left.error = type(error).__name__, str(error)
            return
        result.MergeFrom(outcomes.result(versions))
        self._intake.drop(self._job, Path(left.path))
        result.ClearField("unpublished")


def check_published(results: Iterable[Result]) -> None:
    """Raises the error for which the store did not take one of these, if there is one."""
    for result in results:
        if result.HasField("unpublished"):
            raise by_name(result.unpublished.error_code, result.unpublished.error)


def inputs_of(request: learner_pool_pb2.UpdateRequest) -> learner_pool_pb2.UpdateRequest:
    """All of a request that decides what comes of it: an update is the same under any epoch."""
    inputs = learner_pool_pb2.UpdateRequest()
    inputs.CopyFrom(request)
    inputs.ClearField("epoch")
    inputs.versions.sort(key=lambda version: version.policy)
    return inputs


def other_groups(job: str, round_: int) -> ConflictError:
    """What a coordinator is told that has decided otherwise than the one before it."""
    return ConflictError(
        f"job {job}: round {round_ + 1} was published for other groups than it is asked for now; resume from a "
        "checkpoint"
    )
