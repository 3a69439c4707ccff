"""The gRPC servicer of CoordinatorService: decodes requests, calls `Jobs`, encodes replies.

A job's events and its log are streamed from any position until the job has ended. Of a run folder, clients may download
regular files; every path outside of it is refused.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import grpc

from marless.core.errors import CorruptError, NotFoundError, SpecError, UnavailableError
from marless.rpc import chunks
from marless.rpc.requests import check_number
from marless.rpc.server import bulk_download, bulk_upload, register_bulk
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceServicer, add_CoordinatorServiceServicer_to_server
from marless.services.coordinator.api.monitoring import Readiness
from marless.services.coordinator.jobs.job_queue import LiveJob
from marless.services.coordinator.jobs.jobs import Jobs
from marless.services.coordinator.jobs.submission import IfExists, Submission
from marless.services.coordinator.jobs.view import JobView
from marless.services.coordinator.state import job_log
from marless.services.coordinator.state.job_log import StoredLine
from marless.services.coordinator.state.ownership import LOCK
from marless.storage.round_file import RoundReader

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

    async def SubmitJob(self, request: pb.SubmitJobRequest, context: Context) -> pb.SubmitJobResponse:
        """Accept a job."""
        submission = Submission(
            job=request.job,
            spec_json=request.spec_json,
            request_id=request.request_id,
            if_exists=_IF_EXISTS.get(request.if_exists, IfExists.FAIL),
            attached=request.attached,
        )
        return pb.SubmitJobResponse(job=_job(await self._jobs.submit(submission)))

    async def UploadCheckpoint(  # type: ignore[override]  # frames arrive as raw bytes, see `register`
        self, request_iterator: AsyncIterator[bytes], context: Context
    ) -> pb.UploadCheckpointResponse:
        """Receive a checkpoint."""
        header, frames = await chunks.read_header(request_iterator, pb.CheckpointHeader, within_s=chunks.STALL_S)
        sizes = (header.manifest_bytes, *header.file_bytes)
        return pb.UploadCheckpointResponse(checkpoint=await self._jobs.uploads.receive(sizes, frames))

    async def GetJob(self, request: pb.GetJobRequest, context: Context) -> pb.GetJobResponse:
        """Read one job."""
        return pb.GetJobResponse(job=_job(await self._jobs.get(request.job)))

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        """List jobs, newest first."""
        check_number("the number of states", len(request.states), 0, len(pb.JobState.values()))
        if unknown := [state for state in request.states if state not in pb.JobState.values()]:
            raise SpecError(f"{unknown[0]} is not a state of a job; known: {', '.join(pb.JobState.keys())}")
        states = {pb.JobState.Name(state).removeprefix("JOB_STATE_") for state in request.states}
        views, after = await self._jobs.page(request.page_size, request.page_token, states)
        return pb.ListJobsResponse(jobs=map(_job, views), next_page_token=after)

    async def WatchJob(self, request: pb.WatchJobRequest, context: Context) -> AsyncIterator[pb.JobEvent]:
        """Stream events."""
        async for event in watch(self._jobs, request.job, request.cursor):
            if event.view:
                yield pb.JobEvent(cursor=event.cursor, state=_job(event.view))
            else:
                yield pb.JobEvent(cursor=event.cursor, record_json=event.record_json)

    async def StreamLogs(self, request: pb.StreamLogsRequest, context: Context) -> AsyncIterator[pb.LogLine]:
        """Stream the job's log."""
        lines = read_log(self._jobs, request.job, request.cursor, follow=request.follow, tail=request.tail)
        async for line in lines:
            yield pb.LogLine(cursor=line.cursor, json=line.json)

    async def CancelJob(self, request: pb.CancelJobRequest, context: Context) -> pb.CancelJobResponse:
        """Ask a job to stop."""
        return pb.CancelJobResponse(job=_job(await self._jobs.cancel(request.job)))

    async def ResumeJob(self, request: pb.ResumeJobRequest, context: Context) -> pb.ResumeJobResponse:
        """Continue a job that has ended."""
        view = await self._jobs.resume(request.job, request.request_id, request.stop_json)
        return pb.ResumeJobResponse(job=_job(view))

    async def DeleteJob(self, request: pb.DeleteJobRequest, context: Context) -> pb.DeleteJobResponse:
        """Delete a job that has ended."""
        await self._jobs.delete(request.job, allow_missing=request.allow_missing)
        return pb.DeleteJobResponse()

    async def ListFiles(self, request: pb.ListFilesRequest, context: Context) -> pb.ListFilesResponse:
        """List the files of a run folder."""
        view = await self._jobs.get(request.job)
        await self._jobs.bring(request.job)
        found = await asyncio.to_thread(listing, view.run_dir)
        return pb.ListFilesResponse(files=[pb.FileInfo(path=file.path, bytes=file.bytes) for file in found])

    async def ReadFile(  # type: ignore[override]  # frames leave as raw bytes, see `register`
        self, request: pb.ReadFileRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Send one file, as large as it was when it was opened."""
        view = await self._jobs.get(request.job)
        file, size_bytes = await asyncio.to_thread(open_file, view.run_dir, request.path)
        with file:
            for frame in chunks.frames(pb.FileInfo(path=request.path, bytes=size_bytes), ()):
                yield frame
            while piece := await asyncio.to_thread(file.read, min(size_bytes, chunks.PIECE_BYTES)):
                size_bytes -= len(piece)
                for frame in chunks.data_frames((piece,)):
                    yield frame

    async def GetInfo(self, request: pb.GetInfoRequest, context: Context) -> pb.GetInfoResponse:
        """Return the coordinator's version, clock, runs directory and services."""
        services = (
            pb.ServiceInfo(name=name, address=peer.address, serving=name not in self._readiness.missing)
            for name, peer in self._readiness.peers.items()
        )
        return pb.GetInfoResponse(
            version=version("marless"), now_s=time.time(), runs=self._jobs.place, services=services
        )


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


_NOT_FOR_USERS = ("store",)
"""Folders that clients cannot download: `store`, the database of the Redis that `marless train` starts."""


class ListedFile(NamedTuple):
    """A file's path relative to the run folder, with forward slashes, and its present size in bytes."""

    path: str
    bytes: int


def listing(folder: Path) -> list[ListedFile]:
    """All finished regular files of a run folder, sorted by path."""
    listed: list[ListedFile] = []
    for directory, subfolders, names in os.walk(folder):
        here = Path(directory).relative_to(folder)
        subfolders[:] = [name for name in subfolders if _is_for_users((here / name).as_posix())]
        for name in names:
            path = (here / name).as_posix()
            try:
                found = (folder / path).lstat()
            except FileNotFoundError:  # removed since it was listed, as old checkpoints are
                continue
            if _is_for_users(path) and stat.S_ISREG(found.st_mode):
                listed.append(ListedFile(path, found.st_size))
    return sorted(listed)


def open_file(folder: Path, path: str) -> tuple[BinaryIO, int]:
    """Open a file that `listing` returns; returns it with its present size in bytes.

    Raises NotFoundError for every other path, symbolic links included.
    """
    missing = NotFoundError(f"there is no file {path!r} in {folder}; `marless download` fetches those that exist")
    if not _is_for_users(path) or path != Path(path).as_posix():
        raise missing
    target = folder / path
    try:
        if target.resolve(strict=True) != folder.resolve() / path:
            raise missing  # a link, which may lead anywhere
        # What has been put in place of the file since may be a link, or a pipe that would be waited for.
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        raise missing from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise missing
    return os.fdopen(descriptor, "rb"), found.st_size


def _is_for_users(path: str) -> bool:
    """False for files being written, lock files, folders in _NOT_FOR_USERS, and paths that leave the folder."""
    parts = path.split("/")
    return not (
        parts[0] in _NOT_FOR_USERS
        or any(part in ("", ".", "..") or part.startswith(LOCK) or part.endswith(".partial") for part in parts)
    )


MOST_LINES = 1_000_000
FOREIGN_PERIOD_S = 0.2
"""Seconds between two looks at the folder of a job that this coordinator does not run."""


@dataclass(frozen=True)
class WatchEvent:
    """A new round, or a new status; `cursor` counts the rounds recorded so far."""

    cursor: int
    record_json: str
    """The round's line of rounds.jsonl; "" for a status."""
    view: JobView | None


async def watch(jobs: Jobs, job: str, cursor: int) -> AsyncIterator[WatchEvent]:
    """Rounds from number `cursor` on and every change of status, until the job has ended.

    Rounds are read from the disk in batches of bounded size, no faster than the client takes them, so that a slow
    client costs little memory. Raises NotFoundError, CorruptError, and UnavailableError when the coordinator stops.
    """
    check_number("cursor", cursor)
    shown: JobView | None = None
    source = _Source(jobs, job)
    rounds = RoundReader(jobs.folder(job).rounds_path)
    while True:
        view = await source.look()
        # Before the status: nothing follows the event that the job has ended.
        while cursor < view.rounds and (lines := await asyncio.to_thread(rounds.batch, cursor)):
            for line in lines:
                cursor += 1
                yield WatchEvent(cursor, line, None)
        if shown is None or view.status != shown.status:
            shown = view
            yield WatchEvent(cursor, "", view)
        if view.status.ended:
            if cursor < view.rounds:
                raise CorruptError(f"{view.run_dir}: round {cursor + 1} is not in rounds.jsonl")
            return
        await source.notifier()


async def read_log(jobs: Jobs, job: str, cursor: int, *, follow: bool, tail: int) -> AsyncIterator[StoredLine]:
    """Lines of a job's log from `cursor` on, or the last `tail` ones; with `follow`, until the job has ended.

    Raises NotFoundError, SpecError for a bad cursor, and UnavailableError when the coordinator stops.
    """
    check_number("tail", tail, most=MOST_LINES)
    path = jobs.folder(job).log_path
    source = _Source(jobs, job)
    await source.look()
    if tail:
        cursor = await asyncio.to_thread(job_log.tail, path, tail)
    while True:
        view = await source.look()
        while lines := await asyncio.to_thread(job_log.lines, path, cursor):
            for line in lines:
                cursor = line.cursor
                yield line
        # A job that this coordinator does not run adds nothing to its log.
        if not follow or (view.status.ended and jobs.live(job) is None):
            return
        await source.notifier()


class _Source:
    """The source of one job's changes: the live job if this coordinator runs it, else its folder."""

    def __init__(self, jobs: Jobs, job: str) -> None:
        self._jobs = jobs
        self._job = job
        self._live: LiveJob | None = None
        self._next: asyncio.Event | None = None

    async def look(self) -> JobView:
        """The present view. That of a job that has just ended here is not read from disk, which may be full."""
        live = self._jobs.live(self._job)
        if live or not (self._live and self._live.status.ended):
            self._live = live
        # Taken before the view, so that a change between the two is not slept through.
        self._next = live.notifier.next if live else None
        return self._live.view if self._live else await self._jobs.get(self._job)

    async def notifier(self) -> None:
        """Wait for a possible change; raises UnavailableError if the coordinator is stopping."""
        if self._jobs.stopped:
            raise UnavailableError("the coordinator is stopping; continue from the last cursor")
        if self._next:
            await self._next.wait()
        else:
            await asyncio.sleep(FOREIGN_PERIOD_S)
