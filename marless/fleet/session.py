"""The worker's side of its stream: connect to the pool, run one task at a time, measure and report each."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import NoReturn

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.core import orphans
from marless.core.errors import MarlessError, OverloadedError, UnavailableError, told
from marless.core.log import structlog
from marless.core.machine import usable_cores
from marless.core.stopwatch import Stopwatch
from marless.fleet.handover import Handed, Handover, listen
from marless.fleet.worker_process import Watchdog, WorkerOptions
from marless.rpc.client import Peer
from marless.rpc.errors import from_rpc
from marless.rpc.tracing import scope_of, within
from marless.rpc.v1 import common_pb2 as pb

DETAIL_BYTES = 4096
"""Bytes of a traceback's end that are sent along with the error message."""
OVERDUE_S = 5.0
"""Seconds after the time limit of a task, and after the last task, in which a worker has to be done."""
CANCELLED_S = 10.0
"""Seconds in which a cancelled task has to end; its pool disconnects the worker before."""
WAITING_S = 5.0
"""Seconds after which a worker that its pool does not answer says so, and then again and again."""
Handle = Callable[[bytes], Awaitable[bytes]]
Stream = grpc.aio.StreamStreamCall[pb.WorkerMessage, pb.PoolMessage]
Work = grpc.aio.StreamStreamMultiCallable[pb.WorkerMessage, pb.PoolMessage]
_log = structlog.get_logger("marless.worker")


async def work(
    options: WorkerOptions, peer: Peer, method: Work, handle: Handle, device: str = "cpu", gpus: int = 0
) -> None:
    """Run tasks for the pool until it drains this worker, the connection is lost, or standard input closes.

    It is told on which device this worker can compute, and how many GPUs its machine has.
    """
    # First, because the pool's line has the ticket that the hello shows, and the token of all calls.
    watch = await _follow_pool(options.handover) if options.launched else None
    hello = pb.WorkerHello(
        worker=options.worker,
        pid=os.getpid(),
        host=socket.gethostname(),
        vcpus=usable_cores(),
        device=device,
        gpus=gpus,
        ticket=options.handover.ticket,
        machine=pb.Machine(**asdict(options.machine)),
    )
    try:
        options.life.renewed = await _session(peer, method, hello, handle, options.watchdog)
    finally:
        if watch:
            watch.cancel()
        options.watchdog.arm(OVERDUE_S)


async def _follow_pool(handover: Handover) -> asyncio.Task[None]:
    """Receive the pool's handover, and later ones in the background; exits the process when the pool is gone."""
    handed = await listen()
    if not await handed.into(handover):
        _end_with_pool()
    return asyncio.create_task(_keep_following(handed, handover))


async def _keep_following(handed: Handed, handover: Handover) -> None:
    try:
        while await handed.into(handover):
            pass
    finally:
        handed.close()
    _end_with_pool()


def _end_with_pool() -> NoReturn:
    _log.info("worker.orphaned")
    orphans.end_own()
    os._exit(0)  # a thread in the middle of a task cannot be interrupted, and its result cannot be delivered


async def _session(peer: Peer, method: Work, hello: pb.WorkerHello, handle: Handle, watchdog: Watchdog) -> bool:
    """Run tasks until the stream ends; returns True if the pool wants a fresh worker in place of this one."""
    renewed = False
    # A worker that something else starts may be there before its pool: it waits for it, and says so now and then.
    stream = method(metadata=peer.metadata, wait_for_ready=True)
    tasks = _OneAtATime(handle, stream, hello.worker, watchdog)
    waiting = asyncio.create_task(_say_why_it_waits(peer, hello.worker))
    try:
        await stream.write(pb.WorkerMessage(hello=hello))
        waiting.cancel()
        renewed = await _serve(stream, tasks)
        await stream.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the latter for a write to a stream that has ended
        await _tell_end(stream, hello.worker)
    finally:
        waiting.cancel()
        tasks.close()
        stream.cancel()
    return renewed


async def _say_why_it_waits(peer: Peer, worker: str) -> None:
    check = health_pb2_grpc.HealthStub(peer.channel).Check
    while True:
        await asyncio.sleep(WAITING_S)
        try:
            await peer.call(check, health_pb2.HealthCheckRequest())
        except MarlessError as error:
            _log.warning("worker.waiting", worker=worker, pool=peer.address, reason=str(error))


async def _tell_end(stream: Stream, worker: str) -> None:
    """Log that the pool is gone or has given this worker up; raises the reason if it has refused this worker."""
    code = await stream.code()
    if code == grpc.StatusCode.OK:
        _log.warning("worker.given_up", worker=worker)
        return
    details, trailer = await stream.details(), await stream.trailing_metadata()
    reason = from_rpc(grpc.aio.AioRpcError(code, None, trailer, details), "its pool")
    if not isinstance(reason, UnavailableError | OverloadedError):
        raise reason
    _log.warning("worker.pool_lost", worker=worker, code=code.name, reason=str(reason))


async def _serve(stream: Stream, tasks: _OneAtATime) -> bool:
    renewed = False
    try:
        while (message := await stream.read()) is not grpc.aio.EOF:
            assert isinstance(message, pb.PoolMessage)  # EOF is one object, and a type to the checker
            if message.HasField("drain"):
                renewed = message.drain.renew
                break
            if message.HasField("cancel"):
                tasks.cancel(message.cancel)
            else:
                tasks.start(message.task)
    except grpc.aio.AioRpcError:
        await tasks.finished()  # a learner may still publish what the job needs
        raise
    await tasks.finished()
    return renewed


class _OneAtATime:
    """Runs the pool's tasks one at a time, concurrently with reading the stream, so that cancellations are received."""

    def __init__(self, handle: Handle, stream: Stream, worker: str, watchdog: Watchdog) -> None:
        self._handle = handle
        self._watchdog = watchdog
        self._stream = stream
        self._worker = worker
        self._cold = True
        self._init_cpu_s = time.process_time()
        self._task = pb.Task()
        self._work: asyncio.Future[bytes] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        """Serialises writes. The pool may react to a result before gRPC reports it as sent, and two concurrent writes
        break the stream."""

    def start(self, task: pb.Task) -> None:
        """Start a task; its result is sent to the pool, which then sends the next one."""
        self._task, began = task, (Stopwatch.start(), time.process_time())
        if task.timeout_s:
            self._watchdog.arm(task.timeout_s + OVERDUE_S)
        with within(scope_of(task.traceparent, None)):  # the calls of this task tell of it
            self._work = asyncio.ensure_future(self._handle(task.payload))
        self._answering = asyncio.create_task(self._answer(task, self._work, began))

    def cancel(self, cancel: pb.Cancel) -> None:
        """Cancel this attempt at this task if it is running."""
        runs = (cancel.id, cancel.attempt) == (self._task.id, self._task.attempt)
        # Not for a task that has just ended: nobody would disarm the watchdog, and an idle worker would be ended.
        if self._work and runs and self._work.cancel():
            self._watchdog.arm(CANCELLED_S)

    async def finished(self) -> None:
        """Wait until the running task has ended and its result is sent."""
        if self._answering:
            await self._answering

    def close(self) -> None:
        """Cancel everything that is running; idempotent."""
        for task in (self._answering, self._work):
            if task:
                task.cancel()

    async def _answer(self, task: pb.Task, work: asyncio.Future[bytes], began: tuple[Stopwatch, float]) -> None:
        result = await _finished(task, work, worker=self._worker, cold=self._cold, began=began)
        if self._cold:
            result.invocation.init_cpu_s = self._init_cpu_s
        self._cold = False
        self._watchdog.disarm()
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader notices the broken stream
            async with self._writing:
                await self._stream.write(pb.WorkerMessage(result=result))


async def _finished(
    task: pb.Task, work: asyncio.Future[bytes], *, worker: str, cold: bool, began: tuple[Stopwatch, float]
) -> pb.TaskResult:
    """Wait for a task and build its result. `began` is its stopwatch and the process's CPU seconds at its start."""
    result = pb.TaskResult(id=task.id, attempt=task.attempt)
    watch, start_cpu_s = began
    try:
        # `wait` does not pass a cancellation on, and raises no error of the work, so that it is clear below which of
        # the two was cancelled.
        await asyncio.wait([work])
        result.payload = work.result()
    except asyncio.CancelledError:
        if not work.cancelled():
            work.cancel()
            raise
        # Nobody wants the result, but the pool gives this worker no other task before it has an answer.
        result.error_code, result.error = "InternalError", f"cancelled in {worker}"
    except MarlessError as error:
        result.error_code, result.error, result.detail = type(error).__name__, str(error), error.detail
    except Exception as error:  # noqa: BLE001  # a bug must reach the pool as a failed task, not as a dead worker
        result.error_code, result.error = "InternalError", f"{told(error)} (in {worker})"
        result.detail = _end("".join(traceback.format_exception(error)))
        _log.error("task.failed", task=task.id, exception=result.detail)  # only its end: it may have megabytes
    result.invocation.CopyFrom(
        pb.Invocation(
            id=task.id,
            attempt=task.attempt,
            worker=worker,
            start_s=watch.started_s,
            end_s=watch.now_s,
            vcpu_s=time.process_time() - start_cpu_s,
            memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            cold=cold,
        )
    )
    return result


def _end(text: str) -> str:
    """The last whole lines of a text that fit into `DETAIL_BYTES`."""
    raw = text.rstrip().encode()
    if len(raw) <= DETAIL_BYTES:
        return raw.decode()
    return raw[-DETAIL_BYTES:].partition(b"\n")[2].decode(errors="ignore")
