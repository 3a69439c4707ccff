"""The asyncio client, and the same client of a coordinator in this process, to which nothing is sent."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from marless.app.client import transfers
from marless.app.client.connection import CALL_TIMEOUT_S, Connection, find_coordinator
from marless.app.client.jobs import Event, File, Info, Job, JobState, LogLine, event_of, info_of, job_of
from marless.core import documents
from marless.core.errors import AlreadyExistsError, NotFoundError, SpecError, unknown_name
from marless.rpc import chunks
from marless.rpc.concurrency import in_thread
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    from marless.jobs.spec import JobSpec

CONTACT_S = 5.0
PATIENCE_S = 300.0
SUBMIT_TIMEOUT_S = 60.0
PAGE = 1000
"""Most jobs in one page of a listing."""
UPLOADS = 3
"""Most uploads of a checkpoint for one job."""
IfExists = Literal["fail", "use", "replace"]
HERE = "this process"
"""The address of a coordinator in this process."""


class AsyncClient:
    """Submits jobs to a coordinator, watches them and downloads their files. An async context manager.

    `coordinator` is an address, "host:port" or "unix:PATH"; by default $MARLESS_COORDINATOR, else the one that
    `marless up` started on the run folders of `runs`. A coordinator on another machine requires a token (`token`, by
    default $MARLESS_TOKEN, else the client's token in the directory $MARLESS_TOKENS) and the file of the certificate
    authority (`tls_ca`, by default $MARLESS_TLS_CA). If it requires client certificates, also give `tls_cert` and
    `tls_key` (by default $MARLESS_TLS_CERT and $MARLESS_TLS_KEY).

    Calls and streams survive a restart of the coordinator: they are retried for up to `patience_s` seconds, or
    `contact_s` if it has never answered. Every method may raise UnreachableError after that, UnauthenticatedError for a
    wrong token, and NotFoundError for a job that does not exist.
    """

    def __init__(
        self,
        coordinator: str | None = None,
        *,
        runs: Path | str | None = None,
        token: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        contact_s: float = CONTACT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.address = find_coordinator(coordinator, runs)
        self._security = Security.of_client(token=token, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key)
        self._contact_s = contact_s
        self._patience_s = patience_s

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; jobs continue."""
        # To ask for a connection that nobody has used would make one.
        if "_connection" in self.__dict__:
            await self._connection.close()

    @cached_property
    def _connection(self) -> Connection:
        """The connection; it belongs to the event loop that first uses it."""
        return Connection(self.address, self._security, contact_s=self._contact_s, patience_s=self._patience_s)

    async def submit(
        self,
        spec: JobSpec | Mapping[str, Any] | Path | str,  # Any: YAML
        *,
        job: str | None = None,
        if_exists: IfExists = "fail",
        overrides: Sequence[str] = (),
        request_id: str | None = None,
        attached: bool = False,
    ) -> Job:
        """Submit a job: a spec, or the path of a job file with `overrides` ("section.field=value").

        The job is stored durably when this returns. `job` is its id, by default its name and the time. If the id is
        taken, `if_exists` decides: "fail" raises AlreadyExistsError, "use" returns the existing job if its spec is
        equal, and "replace" first cancels and deletes the existing job. Repeating a submission with the same
        `request_id` and `job` returns the same job. An `attached` job is not resumed automatically after its
        coordinator was killed.

        Files that the spec names are read on this machine: `bill.prices`, and a run folder or checkpoint as
        `start.checkpoint`.

        Raises SpecError for an invalid spec, AlreadyExistsError, OverloadedError if too many jobs are queued.
        """
        if job is None and if_exists != "fail":
            raise SpecError(f"if_exists={if_exists!r} needs a job id: without one, each submission is a job of its own")
        if if_exists not in get_args(IfExists):
            raise SpecError(f"if_exists: {unknown_name('choice', str(if_exists), get_args(IfExists))}")
        resolved, source = _resolved(spec, overrides)
        request = pb.SubmitJobRequest(
            job=job or f"{resolved.name}-{time.strftime('%Y%m%d-%H%M%S')}",
            # Equal in all attempts: if only the answer was lost, the next one finds its job and makes no second.
            request_id=request_id or uuid.uuid4().hex,
            if_exists=pb.IfExists.Value(f"IF_EXISTS_{if_exists.upper()}"),
            attached=attached,
        )
        try:
            return await self._with_checkpoint(request, resolved, renamed=job is None)
        except SpecError as error:
            lines = (line.removeprefix("spec: ") for line in str(error).splitlines())
            raise SpecError("\n".join(f"{source}: {line}" for line in lines)) from None

    async def _with_checkpoint(self, request: pb.SubmitJobRequest, spec: JobSpec, *, renamed: bool) -> Job:
        """Upload the checkpoint that the job starts from, if it is on this machine, and submit the job."""

        async with in_thread(transfers.local_checkpoint(spec)) as directory:
            for attempt in reversed(range(UPLOADS if directory else 1)):
                sent = await transfers.sent(self._connection, directory, spec) if directory else spec
                request.spec_json = sent.to_json()
                try:
                    return await self._submit(request, renamed=renamed)
                except NotFoundError:  # another job with the same start has consumed the upload
                    if not attempt:
                        raise
        raise AssertionError("the last attempt returns or raises")

    async def _submit(self, request: pb.SubmitJobRequest, *, renamed: bool) -> Job:
        """Submit a request. If the id was generated (`renamed`) and is taken, append a number to it."""
        wished, number = request.job, 1
        while True:
            try:
                answer = await self._connection.call(
                    self._connection.stub.SubmitJob, request, timeout_s=SUBMIT_TIMEOUT_S
                )
            except AlreadyExistsError:
                if not renamed:
                    raise
                number += 1
                request.job = f"{wished}-{number}"
            else:
                return job_of(answer.job)

    async def get(self, job: str) -> Job:
        """The present state of a job."""
        return job_of((await self._connection.call(self._connection.stub.GetJob, pb.GetJobRequest(job=job))).job)

    async def list(self, *, states: Sequence[JobState | str] = (), limit: int | None = None) -> tuple[Job, ...]:
        """All jobs, newest first, or those in one of `states`; at most `limit`. Raises SpecError for a wrong state."""
        given = [JobState.named(state) for state in ([states] if isinstance(states, str) else states)]
        wanted = [state for state in given if state is not JobState.INTERRUPTED]
        if given and not wanted:
            return ()
        request = pb.ListJobsRequest(
            states=[pb.JobState.Value(f"JOB_STATE_{state}") for state in wanted],
            page_size=0 if limit is None else min(max(limit, 1), PAGE),
        )
        jobs: tuple[Job, ...] = ()
        while True:
            page = await self._connection.call(self._connection.stub.ListJobs, request)
            jobs += tuple(map(job_of, page.jobs))
            if not page.next_page_token or (limit is not None and len(jobs) >= limit):
                return jobs[:limit]
            request.page_token = page.next_page_token

    async def cancel(self, job: str) -> Job:
        """Ask a job to stop: after its present round, or without finishing it if that takes longer than 2 s. A job that
        has ended is unchanged.
        """
        return job_of((await self._connection.call(self._connection.stub.CancelJob, pb.CancelJobRequest(job=job))).job)

    async def resume(
        self,
        job: str,
        *,
        stop: Mapping[str, Any] | None = None,  # Any: JSON
        request_id: str | None = None,
    ) -> Job:
        """Resume an ended job after its last recorded round.

        Each of the `stop` rules replaces the job's rule of that name, or removes it if it is None; others are kept.

        Raises JobStateError if the job has not ended or has no round left to run, SpecError for invalid stop rules.
        """
        request = pb.ResumeJobRequest(
            job=job, request_id=request_id or uuid.uuid4().hex, stop_json=json.dumps(dict(stop)) if stop else ""
        )
        answer = await self._connection.call(self._connection.stub.ResumeJob, request, timeout_s=SUBMIT_TIMEOUT_S)
        return job_of(answer.job)

    async def delete(self, job: str) -> None:
        """Delete an ended job, its run folder and its policy versions; raises JobStateError if it has not ended."""
        await self.get(job)  # raises NotFoundError; after that, a retried request that finds no job has succeeded
        request = pb.DeleteJobRequest(job=job, allow_missing=True)
        await self._connection.call(self._connection.stub.DeleteJob, request, timeout_s=SUBMIT_TIMEOUT_S)

    async def watch(self, job: str, *, cursor: int = 0) -> AsyncGenerator[Event, None]:
        """Yield every round from `cursor` on and every change of state, each once, until the job has ended."""
        async with aclosing(self._events(job, cursor)) as messages:
            async for message in messages:
                yield event_of(message)

    async def watch_lines(self, job: str, *, cursor: int = 0) -> AsyncGenerator[Job | str, None]:
        """Yield the same as `watch`, but rounds as the lines of rounds.jsonl, which are not decoded."""
        async with aclosing(self._events(job, cursor)) as messages:
            async for message in messages:
                yield message.record_json if message.HasField("record_json") else job_of(message.state)

    async def _events(self, job: str, cursor: int) -> AsyncGenerator[pb.JobEvent, None]:
        told: Job | None = None

        def request() -> pb.WatchJobRequest:
            return pb.WatchJobRequest(job=job, cursor=cursor)

        stream = self._connection.stream(self._connection.stub.WatchJob, request, lasting=True)
        async with aclosing(stream) as messages:
            async for message in messages:
                is_round = message.HasField("record_json")
                if is_round and message.cursor <= cursor:
                    continue
                cursor = max(cursor, message.cursor)
                if is_round:
                    yield message
                    continue
                state = job_of(message.state)
                changed = told is None or _standing(told) != _standing(state)
                told = state
                if changed:
                    yield message
                if told.state.ended:
                    return

    async def wait(self, job: str, *, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended or `timeout_s` is over; returns its state then."""
        known = await self.get(job)
        with suppress(TimeoutError):
            # From the present round on, because only changes of its state matter here.
            async with asyncio.timeout(timeout_s), aclosing(self.watch(job, cursor=known.rounds)) as events:
                async for event in events:
                    known = event.job or known
        return known

    async def logs(
        self, job: str, *, follow: bool = False, tail: int = 0, cursor: int = 0
    ) -> AsyncGenerator[LogLine, None]:
        """Yield the job's log from `cursor` on, or its last `tail` lines; with `follow`, until the job has ended."""
        ended = False

        def request() -> pb.StreamLogsRequest:
            # Once the job has ended, one more stream, which does not follow, brings what was written until then.
            return pb.StreamLogsRequest(job=job, cursor=cursor, tail=tail, follow=follow and not ended)

        while True:
            async with aclosing(self._connection.stream(self._connection.stub.StreamLogs, request)) as messages:
                async for message in messages:
                    if message.cursor > cursor:
                        # A stream that is begun anew goes on at the cursor: by its tail it would leave lines out.
                        cursor, tail = message.cursor, 0
                        yield LogLine(cursor=cursor, text=message.json)
            if ended or not follow:
                return
            # A followed stream also ends when the coordinator stops, so check whether the job itself has ended.
            ended = (await self.get(job)).state.ended

    async def files(self, job: str) -> tuple[File, ...]:
        """List the files in the job's run folder."""
        answer = await self._connection.call(self._connection.stub.ListFiles, pb.ListFilesRequest(job=job))
        return tuple(File(path=file.path, bytes=file.bytes) for file in answer.files)

    async def read(self, job: str, path: str) -> bytes:
        """Read one file of the run folder; raises NotFoundError if it does not exist."""
        return await transfers.read(self._connection, job, path)

    async def pieces(self, job: str, path: str) -> AsyncGenerator[memoryview, None]:
        """Yield one file of the run folder in pieces, without retries; raises NotFoundError if it does not exist."""
        async with aclosing(transfers.contents(self._connection, job, path)) as pieces:
            async for piece in pieces:
                yield piece

    async def download(
        self, job: str, to: Path | str, *, told: Callable[[int, int], None] | None = None
    ) -> tuple[File, ...]:
        """Download new and changed files of the run folder into the directory `to`, each atomically; returns those
        files.

        After each file, `told` is called with the number of bytes done and the total. Raises UnavailableError if files
        cannot be written.
        """
        folder, brought, done_bytes = Path(to), [], 0
        wanted = transfers.wanted(await self.files(job), folder)
        for file in wanted:
            with suppress(NotFoundError):  # a checkpoint that has been deleted since the listing
                await transfers.fetch(self._connection, job, file, folder)
                brought.append(file)
            done_bytes += file.bytes
            if told:
                told(done_bytes, sum(each.bytes for each in wanted))
        return tuple(brought)

    async def info(self) -> Info:
        """Information about the coordinator, and the health of the other services as it sees them."""
        return info_of(await self._connection.call(self._connection.stub.GetInfo, pb.GetInfoRequest()))


def _standing(job: Job) -> Job:
    """A job without the fields that change with every round, to detect changes of state: each new stream begins with
    the present state, changed or not.
    """
    return replace(job, rounds=0, env_steps=0, greedy_return=None, win_rate=None)


def _resolved(
    spec: JobSpec | Mapping[str, Any] | Path | str,  # Any: YAML
    overrides: Sequence[str],
) -> tuple[JobSpec, str]:
    """The spec, and the name under which error messages refer to it."""
    from marless.jobs import spec as specs

    if isinstance(spec, Path | str):
        return specs.load(Path(spec), overrides), documents.name_of(Path(spec))
    document = spec.model_dump(mode="json", by_alias=True) if isinstance(spec, specs.JobSpec) else dict(spec)
    return specs.parse(specs.with_files(document, "spec"), "spec"), "spec"


class _DirectPeer:
    """Where bulk data goes."""

    def __init__(self, servicer: Any) -> None:  # Any: as `DirectClient` has it
        self._servicer = servicer
        self.address = HERE

    async def send(
        self, name: str, header: Any, blobs: Sequence[bytes | memoryview], _kind: object, **_: object
    ) -> Any:
        async def frames() -> AsyncIterator[bytes]:
            for frame in chunks.frames(header, blobs):
                yield frame

        return await getattr(self._servicer, name.partition("/")[2])(frames(), None)


class _DirectConnection(Connection):
    """Calls the methods of a servicer. Nothing is retried: what it raises is the answer."""

    def __init__(self, servicer: Any) -> None:  # Any: as `DirectClient` has it
        self.stub = servicer
        self.peer = _DirectPeer(servicer)  # type: ignore[assignment]  # what is used of it

    async def call(self, method: Any, request: Any, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        return await method(request, None)

    async def repeat(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        return await operation()

    async def stream(
        self, method: Any, request: Callable[[], Any], *, lasting: bool = False
    ) -> AsyncGenerator[Any, None]:
        async for response in method(request(), None):
            yield response

    async def close(self) -> None:
        """Nothing is open."""


class DirectClient(AsyncClient):
    """A client of a coordinator in this process.

    Args:
        servicer: Any object with the methods of CoordinatorService; no import leads from here to the services.
    """

    def __init__(self, servicer: Any) -> None:  # Any: see above
        super().__init__(HERE, token="", tls_ca="")
        self._servicer = servicer

    @cached_property
    def _connection(self) -> Connection:
        return _DirectConnection(self._servicer)
