"""The gRPC servicer of CoordinatorService: decodes requests, calls `Jobs`, encodes replies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import grpc

from marless.core.errors import SpecError
from marless.rpc import chunks
from marless.rpc.requests import check_number
from marless.rpc.server import bulk_download, bulk_upload, register_bulk
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceServicer, add_CoordinatorServiceServicer_to_server
from services.coordinator.api import files
from services.coordinator.api.readiness import Readiness
from services.coordinator.api.watching import read_log, watch
from services.coordinator.jobs.jobs import Jobs
from services.coordinator.jobs.submission import IfExists, Submission
from services.coordinator.jobs.view import JobView

Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods
_IF_EXISTS = {pb.IF_EXISTS_USE: IfExists.USE, pb.IF_EXISTS_REPLACE: IfExists.REPLACE}


class CoordinatorServicer(CoordinatorServiceServicer):
    """The RPCs of coordinator.proto."""

    def __init__(self, jobs: Jobs, readiness: Readiness) -> None:
        self._jobs = jobs
        self._readiness = readiness

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server; files are sent as raw bytes."""
        add_CoordinatorServiceServicer_to_server(self, server)
        read = bulk_download(self.ReadFile, pb.ReadFileRequest.FromString)
        receive = bulk_upload(self.UploadCheckpoint, pb.UploadCheckpointResponse.SerializeToString)
        register_bulk(server, "CoordinatorService", {"ReadFile": read, "UploadCheckpoint": receive})

    async def SubmitJob(  # noqa: N802  # gRPC names
        self, request: pb.SubmitJobRequest, context: Context
    ) -> pb.SubmitJobResponse:
        """Accept a job."""
        submission = Submission(
            job=request.job,
            spec_json=request.spec_json,
            request_id=request.request_id,
            if_exists=_IF_EXISTS.get(request.if_exists, IfExists.FAIL),
            attached=request.attached,
        )
        return pb.SubmitJobResponse(job=_job(await self._jobs.submit(submission)))

    async def UploadCheckpoint(  # type: ignore[override]  # noqa: N802  # frames arrive as raw bytes, see `register`
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> pb.UploadCheckpointResponse:
        """Receive a checkpoint."""
        header, frames = await chunks.read_header(request_iterator, pb.CheckpointHeader, within_s=chunks.STALL_S)
        sizes = (header.manifest_bytes, *header.file_bytes)
        return pb.UploadCheckpointResponse(checkpoint=await self._jobs.uploads.receive(sizes, frames))

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:  # noqa: N802
        """Read one job."""
        return pb.GetJobResponse(job=_job(await self._jobs.get(request.job)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:  # noqa: N802
        """List jobs, newest first."""
        check_number("the number of states", len(request.states), 0, len(pb.JobState.values()))
        states = {_state_name(state) for state in request.states}
        views, after = await self._jobs.page(request.page_size, request.page_token, states)
        return pb.ListJobsResponse(jobs=map(_job, views), next_page_token=after)

    async def WatchJob(self, request: pb.WatchJobRequest, context: Context) -> AsyncIterator[pb.JobEvent]:  # noqa: N802
        """Stream events."""
        async for event in watch(self._jobs, request.job, request.cursor):
            if event.view:
                yield pb.JobEvent(cursor=event.cursor, state=_job(event.view))
            else:
                yield pb.JobEvent(cursor=event.cursor, record_json=event.record_json)

    async def StreamLogs(  # noqa: N802
        self, request: pb.StreamLogsRequest, context: Context
    ) -> AsyncIterator[pb.LogLine]:
        """Stream the job's log."""
        lines = read_log(self._jobs, request.job, request.cursor, follow=request.follow, tail=request.tail)
        async for line in lines:
            yield pb.LogLine(cursor=line.cursor, json=line.json)

    async def CancelJob(self, request: pb.CancelJobRequest, context: Context) -> pb.CancelJobResponse:  # noqa: N802
        """Ask a job to stop."""
        return pb.CancelJobResponse(job=_job(await self._jobs.cancel(request.job)))

    async def ResumeJob(self, request: pb.ResumeJobRequest, context: Context) -> pb.ResumeJobResponse:  # noqa: N802
        """Continue a job that has ended."""
        view = await self._jobs.resume(request.job, request.request_id, request.stop_json)
        return pb.ResumeJobResponse(job=_job(view))

    async def DeleteJob(self, request: pb.DeleteJobRequest, context: Context) -> pb.DeleteJobResponse:  # noqa: N802
        """Delete a job that has ended."""
        await self._jobs.delete(request.job, allow_missing=request.allow_missing)
        return pb.DeleteJobResponse()

    async def ListFiles(self, request: pb.ListFilesRequest, context: Context) -> pb.ListFilesResponse:  # noqa: N802
        """List the files of a run folder."""
        view = await self._jobs.get(request.job)
        await self._jobs.bring(request.job)
        found = await asyncio.to_thread(files.listing, view.run_dir)
        return pb.ListFilesResponse(files=[pb.FileInfo(path=file.path, bytes=file.bytes) for file in found])

    async def ReadFile(  # type: ignore[override]  # noqa: N802  # frames leave as raw bytes, see `register`
        self, request: pb.ReadFileRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Send one file, as large as it was when it was opened."""
        view = await self._jobs.get(request.job)
        file, size_bytes = await asyncio.to_thread(files.open_file, view.run_dir, request.path)
        with file:
            for frame in chunks.frames(pb.FileInfo(path=request.path, bytes=size_bytes), ()):
                yield frame
            while piece := await asyncio.to_thread(file.read, min(size_bytes, chunks.PIECE_BYTES)):
                size_bytes -= len(piece)
                for frame in chunks.data_frames((piece,)):
                    yield frame

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:  # noqa: N802
        """Return the coordinator's version, clock, runs directory and services."""
        services = (
            pb.ServiceInfo(name=name, address=address, serving=self._readiness.serving(name))
            for name, address in self._readiness.addresses.items()
        )
        return pb.GetInfoResponse(
            version=version("marless"), now_s=time.time(), runs=self._jobs.place, services=services
        )


def _state_name(state: pb.JobState.ValueType) -> str:
    if state not in pb.JobState.values():
        raise SpecError(f"{state} is not a state of a job; known: {', '.join(pb.JobState.keys())}")
    return pb.JobState.Name(state).removeprefix("JOB_STATE_")


def _job(view: JobView) -> pb.Job:
    status = view.status
    return pb.Job(
        job=status.job,
        state=pb.JobState.Value(f"JOB_STATE_{status.state}"),
        reason=status.reason,
        run_dir=str(view.run_dir),
        rounds=view.rounds,
        env_steps=view.env_steps,
        summary_json=status.summary_json,
        accepted_s=status.accepted_s,
        ended_s=status.ended_s,
        greedy_return=view.greedy_return,
        random_return=view.random_return,
        win_rate=view.win_rate,
        random_win_rate=view.random_win_rate,
        env=status.env,
        algorithm=status.algorithm,
        resumes=status.resumes,
    )
