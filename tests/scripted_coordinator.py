"""A coordinator that does what a test says: real gRPC on a real address, in a thread, with its jobs in memory.

It keeps its jobs when it is killed and started again, as the real one does.
"""

# ruff: noqa: N802  # gRPC names
from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from marless.core.errors import AlreadyExistsError, JobStateError, MarlessError, NotFoundError, SpecError
from marless.core.limits import check_id
from marless.rpc import chunks
from marless.rpc.errors import ErrorInterceptor
from marless.rpc.security import Security, TokenInterceptor
from marless.rpc.server import bulk_download, register_bulk
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceServicer, add_CoordinatorServiceServicer_to_server
from tests.unit.jobs.test_record import RETURNS, record

PAGE = 2
ENDED = (pb.JOB_STATE_SUCCEEDED, pb.JOB_STATE_FAILED, pb.JOB_STATE_CANCELLED)


@dataclass
class ScriptedJob:
    job: pb.Job
    spec_json: str = ""
    request_id: str = ""
    records: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


class Servicer(CoordinatorServiceServicer):
    def __init__(self) -> None:
        self.jobs: dict[str, ScriptedJob] = {}
        self.asked: list[Any] = []
        self.refusals: list[MarlessError] = []
        """What the next calls are answered with."""
        self.services = [pb.ServiceInfo(name="param_store", address="unix:/p", serving=True)]
        self.changed = asyncio.Condition()

    def _take(self, request) -> None:
        self.asked.append(request)
        if self.refusals:
            raise self.refusals.pop(0)

    def _job(self, request) -> ScriptedJob:
        self._take(request)
        if request.job not in self.jobs:
            raise NotFoundError(f"there is no job {request.job!r}")
        return self.jobs[request.job]

    async def SubmitJob(self, request, context):
        self._take(request)
        check_id(request.job)
        known = self.jobs.get(request.job)
        if known is None or request.if_exists == pb.IF_EXISTS_REPLACE:
            spec = json.loads(request.spec_json)
            new = pb.Job(
                job=request.job,
                state=pb.JOB_STATE_RUNNING,
                env=spec["env"]["name"],
                algorithm=spec["algorithm"]["name"],
                accepted_s=1e9,
            )
            known = self.jobs[request.job] = ScriptedJob(new, request.spec_json, request.request_id)
        elif request.if_exists == pb.IF_EXISTS_USE and json.loads(known.spec_json) != json.loads(request.spec_json):
            raise AlreadyExistsError(f"job {request.job!r} exists with another spec; choose another id")
        elif request.if_exists != pb.IF_EXISTS_USE and known.request_id != request.request_id:
            raise AlreadyExistsError(f"job {request.job!r} exists; choose another id")
        return pb.SubmitJobResponse(job=known.job)

    async def GetJob(self, request, context):
        return pb.GetJobResponse(job=self._job(request).job)

    async def ListJobs(self, request, context):
        self._take(request)
        found = [each.job for each in self.jobs.values() if not request.states or each.job.state in request.states]
        start = int(request.page_token or 0)
        rest = start + PAGE < len(found)
        return pb.ListJobsResponse(jobs=found[start : start + PAGE], next_page_token=str(start + PAGE) if rest else "")

    async def CancelJob(self, request, context):
        job = self._job(request).job
        if job.state not in ENDED:
            job.state = pb.JOB_STATE_CANCELLED
        return pb.CancelJobResponse(job=job)

    async def ResumeJob(self, request, context):
        found = self._job(request)
        if found.job.state not in ENDED:
            raise JobStateError(f"job {request.job!r} has not ended; cancel it first")
        if request.stop_json and "rounds" not in json.loads(request.stop_json):
            raise SpecError("stop.steps: unknown field 'steps'")
        found.job.state = pb.JOB_STATE_RUNNING
        found.job.resumes += 1
        return pb.ResumeJobResponse(job=found.job)

    async def DeleteJob(self, request, context):
        self._take(request)
        found = self.jobs.get(request.job)
        if found and found.job.state not in ENDED:
            raise JobStateError(f"job {request.job!r} has not ended; cancel it first")
        self.jobs.pop(request.job, None)
        return pb.DeleteJobResponse()

    async def WatchJob(self, request, context) -> AsyncIterator[pb.JobEvent]:
        found, cursor, shown = self._job(request), request.cursor, None
        while True:
            while cursor < len(found.records):
                cursor += 1
                yield pb.JobEvent(cursor=cursor, record_json=found.records[cursor - 1])
            if found.job != shown:
                shown = pb.Job()
                shown.CopyFrom(found.job)
                yield pb.JobEvent(cursor=cursor, state=shown)
            if found.job.state in ENDED:
                return
            async with self.changed:
                await self.changed.wait_for(lambda: len(found.records) > cursor or found.job != shown)  # noqa: B023

    async def StreamLogs(self, request, context) -> AsyncIterator[pb.LogLine]:
        found = self._job(request)
        cursor = max(len(found.log) - request.tail, 0) if request.tail else request.cursor
        while True:
            while cursor < len(found.log):
                cursor += 1
                yield pb.LogLine(cursor=cursor, json=found.log[cursor - 1])
            if not request.follow or found.job.state in ENDED:
                return
            async with self.changed:
                await self.changed.wait_for(lambda: len(found.log) > cursor or found.job.state in ENDED)  # noqa: B023

    async def ListFiles(self, request, context):
        files = self._job(request).files
        return pb.ListFilesResponse(files=[pb.FileInfo(path=path, bytes=len(data)) for path, data in files.items()])

    async def read_file(self, request, context) -> AsyncIterator[bytes]:
        files = self._job(request).files
        if request.path not in files:
            raise NotFoundError(f"job {request.job!r} has no file {request.path!r}")
        data = files[request.path]
        for frame in chunks.frames(pb.FileInfo(path=request.path, bytes=len(data)), [data]):
            yield frame

    async def GetInfo(self, request, context):
        self._take(request)
        return pb.GetInfoResponse(version="1.2", now_s=1e9, runs="/runs", services=self.services)


class ScriptedCoordinator:
    """A context manager; between `kill` and `start`, nobody listens."""

    def __init__(self, folder: Path, security: Security | None = None) -> None:
        self.servicer: Servicer
        self._security = security or Security()
        self.address = "127.0.0.1:0" if self._security.tls_key else f"unix:{folder}/coordinator.sock"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: grpc.aio.Server | None = None

    def __enter__(self) -> ScriptedCoordinator:
        self._thread.start()
        self.servicer = self._run(self._servicer())
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self) -> None:
        Path(self.address.removeprefix("unix:")).unlink(missing_ok=True)
        self._run(self._start())

    def kill(self) -> None:
        """Without a farewell to anyone."""
        if self._server:
            self._run(self._server.stop(grace=None))
            self._server = None

    def replace(self, method: str, by: Any) -> None:
        """Serve a method in another way from now on."""
        self.kill()
        setattr(self.servicer, method, by)
        self.start()

    def add(self, job: str, state: str = "RUNNING", **fields: Any) -> ScriptedJob:
        state_number = pb.JobState.Value(f"JOB_STATE_{state}")
        made = pb.Job(job=job, state=state_number, env="mpe/simple_spread", algorithm="ippo", accepted_s=1e9)
        self.servicer.jobs[job] = ScriptedJob(made, **fields)
        return self.servicer.jobs[job]

    def happen(
        self, job: str, *, rounds: int = 0, state: str = "", reason: str = "", log: tuple[str, ...] = ()
    ) -> None:
        """Let rounds be recorded, lines be logged, and the state change."""
        self._run(self._happen(self.servicer.jobs[job], rounds, state, reason, log))

    def refuse(self, *errors: MarlessError) -> None:
        """Answer the next calls with these."""
        self.servicer.refusals.extend(errors)

    def asked(self, kind: type) -> list[Any]:
        """The requests of a kind, in order."""
        return [request for request in self.servicer.asked if isinstance(request, kind)]

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10.0)

    async def _servicer(self) -> Servicer:
        return Servicer()

    async def _start(self) -> None:
        self._server = grpc.aio.server(interceptors=(TokenInterceptor(self._security), ErrorInterceptor()))
        add_CoordinatorServiceServicer_to_server(self.servicer, self._server)
        read = bulk_download(self.servicer.read_file, pb.ReadFileRequest.FromString)
        register_bulk(self._server, "CoordinatorService", {"ReadFile": read})
        if credentials := self._security.server_credentials(self.address):
            self.address = f"127.0.0.1:{self._server.add_secure_port(self.address, credentials)}"
        else:
            self._server.add_insecure_port(self.address)
        await self._server.start()

    async def _happen(self, found: ScriptedJob, rounds: int, state: str, reason: str, log: tuple[str, ...]) -> None:
        for _ in range(rounds):
            number = len(found.records)
            evaluation = RETURNS if number % 2 else None
            found.records.append(record(number, job=found.job.job, evaluation=evaluation).to_json())
            found.job.rounds = number + 1
        found.log += log
        if state:
            found.job.state, found.job.reason = pb.JobState.Value(f"JOB_STATE_{state}"), reason
        async with self.servicer.changed:
            self.servicer.changed.notify_all()
