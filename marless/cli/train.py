"""`marless train`: the whole system on this machine, one job, from start to summary."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marless.cli.curve import draw
from marless.cli.stack import LocalStack
from marless.errors import SpecError, UnavailableError
from marless.record import RoundRecord, from_json
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from marless.spec import JobSpec

if TYPE_CHECKING:
    from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub

SUBMIT_TIMEOUT_S = 60.0
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
    """Start the stack, run the job, stop the stack, draw the curve.

    Raises SpecError if the job id is taken, UnavailableError if a service cannot be started or dies.
    """
    folder = runs.resolve() / job_id
    if folder.exists():
        raise SpecError(f"{folder} exists already; choose another job id with --job")
    stack = LocalStack(runs=folder.parent, logs=folder / "logs", data=folder / "store")
    outcome = asyncio.run(_train(stack, spec, job_id, on_round))
    shutil.rmtree(folder / "store", ignore_errors=True)  # the checkpoints hold what it held
    draw(folder)
    return outcome


async def _train(stack: LocalStack, spec: JobSpec, job_id: str, on_round: Callable[[RoundRecord], None]) -> Outcome:
    async with stack:
        return await _unless_failed(stack, _run(stack.coordinator, spec, job_id, on_round))


async def _unless_failed(stack: LocalStack, work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """The outcome of `work`, unless a service dies first."""
    working, failing = asyncio.create_task(work), asyncio.create_task(stack.failed())
    try:
        await asyncio.wait([working, failing], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise failing.result()
    finally:
        for task in (working, failing):
            task.cancel()
        await asyncio.gather(working, failing, return_exceptions=True)


async def _run(address: str, spec: JobSpec, job_id: str, on_round: Callable[[RoundRecord], None]) -> Outcome:
    peer = Peer(address, Security())
    stub: CoordinatorServiceAsyncStub = CoordinatorServiceStub(peer.channel)
    request = coordinator_pb2.SubmitJobRequest(job=job_id, spec_json=spec.to_json())
    try:
        async with _interrupts() as interrupted:
            await peer.call(stub.SubmitJob, request, timeout_s=SUBMIT_TIMEOUT_S, wait_for_ready=True)
            cancelling = asyncio.create_task(_cancel_when(interrupted, peer, stub, job_id))
            try:
                job = await _follow(peer, stub, job_id, on_round)
            finally:
                cancelling.cancel()
            state = coordinator_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")
            return Outcome(state, job.reason, job.summary_json, interrupted.is_set())
    finally:
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
    """The first Ctrl-C (or SIGTERM) lets the present round finish; the second cancels at once."""
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


def summary_of(outcome: Outcome) -> dict[str, object]:
    """The summary as data; the state and the reason alone if the job never began."""
    return (
        json.loads(outcome.summary_json) if outcome.summary_json else {"state": outcome.state, "reason": outcome.reason}
    )
