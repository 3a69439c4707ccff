"""CoordinatorService: decode, call, encode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceServicer
from services.coordinator.jobs import Jobs
from services.coordinator.run_folder import JobStatus

Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods


class CoordinatorServicer(CoordinatorServiceServicer):
    """The RPCs of coordinator.proto."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def SubmitJob(  # noqa: N802  # gRPC names
        self, request: coordinator_pb2.SubmitJobRequest, context: Context
    ) -> coordinator_pb2.SubmitJobResponse:
        """Start a job."""
        status = await self._jobs.submit(request.job, request.spec_json)
        return coordinator_pb2.SubmitJobResponse(job=self._job(status))

    async def GetJob(  # noqa: N802
        self, request: coordinator_pb2.GetJobRequest, context: Context
    ) -> coordinator_pb2.GetJobResponse:
        """Read one job."""
        return coordinator_pb2.GetJobResponse(job=self._job(self._jobs.status(request.job)))

    async def WatchJob(  # noqa: N802
        self, request: coordinator_pb2.WatchJobRequest, context: Context
    ) -> AsyncIterator[coordinator_pb2.JobEvent]:
        """Stream events."""
        async for event in self._jobs.watch(request.job, request.cursor):
            if event.record:
                yield coordinator_pb2.JobEvent(cursor=event.cursor, record_json=event.record.to_json())
            elif event.status:
                yield coordinator_pb2.JobEvent(cursor=event.cursor, state=self._job(event.status))

    async def CancelJob(  # noqa: N802
        self, request: coordinator_pb2.CancelJobRequest, context: Context
    ) -> coordinator_pb2.CancelJobResponse:
        """Ask a job to stop."""
        return coordinator_pb2.CancelJobResponse(job=self._job(self._jobs.cancel(request.job)))

    def _job(self, status: JobStatus) -> coordinator_pb2.Job:
        return coordinator_pb2.Job(
            job=status.job,
            state=coordinator_pb2.JobState.Value(f"JOB_STATE_{status.state}"),
            reason=status.reason,
            run_dir=str(self._jobs.run_dir(status.job)),
            rounds=self._jobs.rounds(status.job),
            summary_json=status.summary_json,
        )
