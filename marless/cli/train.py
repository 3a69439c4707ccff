"""`marless train`: the whole system on this machine, one job, from start to summary."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marless.cli.stack import LocalStack
from marless.errors import SpecError, UnavailableError
from marless.job import check_id
from marless.record import RoundRecord, from_json
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from marless.spec import JobSpec

if TYPE_CHECKING:
    from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub

SUBMIT_TIMEOUT_S = 60.0
OBITUARY_S = 2.0
"""How long a lost call waits for the news that its service has died, which says more."""
_ENDED = (coordinator_pb2.JOB_STATE_SUCCEEDED, coordinator_pb2.JOB_STATE_FAILED, coordinator_pb2.JOB_STATE_CANCELLED)


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    state: str
    """SUCCEEDED, FAILED or CANCELLED."""
    reason: str
    summary_json: str
    interrupted: bool
    """The user pressed Ctrl-C."""


def new_job_id(name: str) -> str:
    """A job id that sorts by time: <name>-<date>-<time>."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def train(spec: JobSpec, *, job_id: str, runs: Path, on_round: Callable[[RoundRecord], None]) -> Outcome:
    """Start the stack, run the job, stop the stack.

    Raises SpecError if the job id cannot be used or is taken, UnavailableError if a service cannot be started or dies.
    """
    check_id(job_id)
    folder = runs.resolve() / job_id
    if folder.exists():
        raise SpecError(f"{folder} exists already; choose another job id with --job")
    stack = LocalStack(runs=folder.parent, logs=folder / "logs", data=folder / "store")
    outcome = asyncio.run(_train(stack, spec, job_id, on_round))
    shutil.rmtree(folder / "store", ignore_errors=True)  # the checkpoints hold what it held
    return outcome


async def _train(stack: LocalStack, spec: JobSpec, job_id: str, on_round: Callable[[RoundRecord], None]) -> Outcome:
    async with _interrupts() as interrupted, stack:
        return await _unless_failed(stack, _run(stack.coordinator, spec, job_id, on_round, interrupted))


async def _unless_failed(stack: LocalStack, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """The outcome of `work`, unless a service dies first."""
    working, failing = asyncio.create_task(work), asyncio.create_task(stack.failed())
    try:
        await asyncio.wait([working, failing], return_when=asyncio.FIRST_COMPLETED)
        if working.done() and isinstance(working.exception(), UnavailableError):
            await asyncio.wait([failing], timeout=OBITUARY_S)
        if failing.done():
            raise failing.result()
        return working.result()
    finally:
        for task in (working, failing):
            task.cancel()
        await asyncio.gather(working, failing, return_exceptions=True)


async def _run(
    address: str, spec: JobSpec, job_id: str, on_round: Callable[[RoundRecord], None], interrupted: asyncio.Event
) -> Outcome:
    peer = Peer(address, Security())
    stub: CoordinatorServiceAsyncStub = CoordinatorServiceStub(peer.channel)
    request = coordinator_pb2.SubmitJobRequest(job=job_id, spec_json=spec.to_json())
    cancelling: asyncio.Task[None] | None = None
    try:
        await peer.call(stub.SubmitJob, request, timeout_s=SUBMIT_TIMEOUT_S, wait_for_ready=True)
        cancelling = asyncio.create_task(_cancel_when(interrupted, peer, stub, job_id))
        job = await _follow(peer, stub, job_id, on_round)
        state = coordinator_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")
        return Outcome(state, job.reason, job.summary_json, interrupted.is_set())
    finally:
        if cancelling:
            cancelling.cancel()
            await asyncio.gather(cancelling, return_exceptions=True)
        await peer.close()


async def _follow(
    peer: Peer, stub: CoordinatorServiceAsyncStub, job_id: str, on_round: Callable[[RoundRecord], None]
) -> coordinator_pb2.Job:
    async for event in peer.stream(stub.WatchJob, coordinator_pb2.WatchJobRequest(job=job_id)):
        if event.HasField("record_json"):
            on_round(from_json(event.record_json))
        elif event.state.state in _ENDED:
            return event.state
    raise UnavailableError(f"the coordinator stopped speaking of job {job_id} before it ended")


async def _cancel_when(interrupted: asyncio.Event, peer: Peer, stub: CoordinatorServiceAsyncStub, job_id: str) -> None:
    await interrupted.wait()
    await peer.call(stub.CancelJob, coordinator_pb2.CancelJobRequest(job=job_id))


@asynccontextmanager
async def _interrupts() -> AsyncIterator[asyncio.Event]:
    """Set by the first Ctrl-C (or SIGTERM), which lets the present round finish; the second cancels at once."""
    event = asyncio.Event()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def interrupt() -> None:
        if event.is_set() and task:
            task.cancel()
        event.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        yield event
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
