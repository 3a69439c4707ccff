"""Task dispatch in a pool: tasks wait in a bounded queue that is fair between jobs, run one at a time per worker, and
are retried on another worker if theirs dies or hangs. If a caller is cancelled, its task is cancelled and the worker
takes the next one.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable

import grpc

from marless.core.errors import MarlessError, OverloadedError, UnavailableError, UnreachableError
from marless.core.limits import MAX_ACTORS
from marless.core.log import structlog
from marless.core.stopwatch import Stopwatch
from marless.fleet.handover import Tickets
from marless.fleet.machines import MachineAccounts
from marless.fleet.tenancy import MAX_ATTEMPTS, MAX_TIMEOUTS, Renewal, Tenancy, given_up, lost, too_slow
from marless.fleet.workers import (
    ConnectedWorkers,
    Idle,
    LastWorkers,
    Send,
    Worker,
    WorkerHungError,
    WorkerLostError,
    either,
    hello_of,
    listen,
    machine_of,
)
from marless.rpc.admission import FairQueue
from marless.rpc.errors import by_name
from marless.rpc.tracing import Attributes, header, present, traced
from marless.rpc.v1 import common_pb2 as pb

QUEUE_LIMIT = 16 * MAX_ACTORS
"""Tasks that may wait for a worker: those of sixteen of the largest rollouts."""
AFFINITIES_KEPT = QUEUE_LIMIT
"""Affinities whose last worker is remembered."""
CANCEL_GRACE_S = 5.0
"""Seconds that a worker may take to stop a cancelled task before it is disconnected."""
_log = structlog.get_logger("marless.workers")


class Dispatcher:
    """Assigns tasks to idle workers: round-robin over jobs, first come first served within a job.

    Among several idle workers, the one that had the last task of the same `affinity` is preferred. With `apart`, no
    worker has tasks of two jobs: see `marless.fleet.tenancy`.
    """

    def __init__(
        self,
        *,
        queue_limit: int = QUEUE_LIMIT,
        max_attempts: int = MAX_ATTEMPTS,
        tickets: Tickets | None = None,
        machines: MachineAccounts | None = None,
        apart: bool = False,
    ) -> None:
        self.machines = machines or MachineAccounts()
        """The accounts of its workers' machines."""
        self.tickets = tickets or Tickets()
        self._queue_limit = queue_limit
        self._max_attempts = max_attempts
        self.connected = ConnectedWorkers()
        self._launched_s: dict[str, float] = {}
        """Launch time of workers that have not connected yet, by the monotonic clock."""
        self._idle = Idle()
        self._apart = apart
        self._last_workers = LastWorkers(AFFINITIES_KEPT)
        self._waiting: FairQueue[asyncio.Future[Worker]] = FairQueue()
        self.tenancy = Tenancy()
        self.renewal = Renewal(self.tenancy, self._idle, self._waiting, self.connected, self._launched_s)
        self._closed = ""
        self._recalled: dict[Worker, asyncio.Task[None]] = {}
        """Workers that are stopping a cancelled task."""
        self.attempts: Counter[str] = Counter()
        """Finished attempts at tasks: "done", "failed", "cancelled", or "lost" with their worker."""

    @property
    def queued(self) -> int:
        """Number of tasks waiting for a worker."""
        return len(self._waiting)

    @property
    def starting(self) -> int:
        """Number of workers that are being launched."""
        return len(self._launched_s)

    @property
    def busy(self) -> bool:
        """True while any task waits or runs."""
        return bool(self._waiting) or any(worker.running for worker in self.connected.values())

    def workers(self) -> list[pb.WorkerInfo]:
        """The connected workers, in the order in which they connected."""
        return [
            pb.WorkerInfo(
                worker=name,
                pid=worker.hello.pid,
                host=worker.hello.host,
                busy=worker.running is not None,
                invocations=worker.invocations,
                job=worker.job or worker.tenant,
                machine=worker.presence.machine.id,
                device=worker.hello.device,
                vcpus=worker.hello.vcpus,
                memory_bytes=worker.memory_bytes,
                drain=worker.drain,
            )
            for name, worker in self.connected.items()
        ]

    def is_running(self, task: str, worker: str, ticket: str) -> bool:
        """True if the worker that is connected with this name and ticket runs this task now."""
        known = self.connected.get(worker)
        if known is None or not hmac.compare_digest(known.hello.ticket.encode(), ticket.encode()):
            return False
        runs = known.running is not None and not known.running.done() and not known.lost.done()
        return runs and known.expected[0] == task

    def launching(self, worker: str) -> str:
        """Announce that a worker of this name is being launched; returns the ticket that it must present.

        The time that it takes to connect is recorded with its first task.
        """
        self._launched_s[worker] = time.monotonic()
        self.tenancy.comes(worker)
        return self.tickets.issue(worker)

    def not_launched(self, worker: str) -> None:
        """Take the announcement of `launching` back: there is no room for this worker now."""
        self._launched_s.pop(worker, None)
        # A worker that was counted on does not come, so an idle one of another job may be needed instead.
        self.renewal.make_room()

    async def run(
        self,
        task: str,
        payload: Callable[[], bytes],
        *,
        timeout_s: float,
        setting: str,
        affinity: str = "",
        queued: Stopwatch | None = None,
    ) -> pb.TaskResult:
        """Run a task, whose id is "<job>/…", on some worker and return its result.

        `setting` is the name of the job's field for `timeout_s`, for error messages. `payload` is called once a worker
        is available. `queued` was started when the caller began to wait; by default, it starts now. If the caller is
        cancelled, the task is cancelled in the background.

        Raises OverloadedError if the queue is full, or if no worker is connected and none can be launched now;
        UnavailableError if no worker is available, if workers die or hang
        `max_attempts` times, or if the task exceeds its time limit `MAX_TIMEOUTS` times; and any domain error of the
        task itself.
        """
        queued, hung = queued or Stopwatch.start(), 0
        gone: list[pb.Invocation] = []
        for attempt in range(1, self._max_attempts + 1):
            worker = await self._acquire(task.partition("/")[0], affinity, again=attempt > 1)
            waited_s, started = queued.seconds, Stopwatch.start()
            sent = pb.Task(id=task, attempt=attempt, payload=payload(), timeout_s=timeout_s)
            try:
                result = await self._traced_on(worker, sent)
            except WorkerLostError as error:
                self.attempts["lost"] += 1
                hung += isinstance(error, WorkerHungError)
                if hung == MAX_TIMEOUTS:
                    raise too_slow(task, timeout_s, setting) from None
                _log.warning("task.worker_lost", task=task, worker=worker.hello.worker, attempt=attempt)
                gone.append(lost(task, attempt, worker, started, waited_s))
                continue
            self.attempts["failed" if result.error_code else "done"] += 1
            if result.error_code:
                raise by_name(result.error_code, result.error, result.detail)
            result.invocation.queued_s = result.invocation.start_s - waited_s  # by the clock of the worker
            # What a worker says of its own start is not taken over: the pool has measured it.
            if result.invocation.cold:
                result.invocation.init_s, result.invocation.ready_s = worker.init_s, worker.ready_s
            else:
                result.invocation.init_s = result.invocation.ready_s = result.invocation.init_cpu_s = 0.0
            result.lost.extend(gone)
            return result
        raise given_up(task, len(gone) - hung, hung)

    async def attach(self, messages: AsyncIterator[pb.WorkerMessage], send: Send) -> None:
        """Serve one worker's stream until it ends; the body of a pool's Work RPC.

        Raises the errors of `hello_of` and `admit`.
        """
        await self.admit(await hello_of(messages), messages, send)

    async def admit(self, hello: pb.WorkerHello, messages: AsyncIterator[pb.WorkerMessage], send: Send) -> None:
        """Serve a worker's stream after its hello has been read, until it ends.

        Raises the errors of `arrive` and of `Worker.hear`.
        """
        worker = self.arrive(hello, send)
        try:
            await listen(worker, messages)
        finally:
            self.depart(worker)

    def arrive(self, hello: pb.WorkerHello, send: Send) -> Worker:
        """Add a worker after its hello; `depart` is called when its stream has ended.

        A second stream with the same name and ticket replaces the first. Raises UnauthenticatedError for a worker that
        may not use its name, SpecError for an impossible machine.
        """
        name = hello.worker
        before = self.connected.get(name)
        # Before anything else: a stranger must not take the place of the worker that has this name.
        self.tickets.check(name, hello.ticket, before.hello.ticket if before else None)
        machine, now_s = machine_of(hello), time.monotonic()
        init_s = now_s - self._launched_s.pop(name, now_s)  # 0 for a worker that this pool did not launch
        worker = Worker(hello, send, init_s, self.machines.arrive(machine, init_s))
        # Only now that nothing can be refused any more: a second stream that is faulty must not end the first.
        if before:
            before.lose()
        self.connected.arrive(name, worker)
        self.tenancy.comes(name)
        facts = {"pid": hello.pid, "host": hello.host, "device": hello.device, "init_s": round(worker.init_s, 3)}
        _log.info("worker.connected", worker=name, **facts)
        if worker.lacks_gpu:
            advice = "install torch for the driver's CUDA version, or hide the GPU with CUDA_VISIBLE_DEVICES="
            _log.warning("worker.gpu_unused", worker=name, host=hello.host, gpus=hello.gpus, advice=advice)
        self._release(worker)
        return worker

    def depart(self, worker: Worker) -> None:
        """Remove a worker whose stream has ended."""
        worker.lose()
        self.connected.release(worker.hello.worker, worker)
        self._idle.remove(worker)
        self._last_workers.release(worker)
        # Now, although the task's caller does it too when it wakes up: the account of a released machine takes nothing
        # more.
        self._task_ends(worker)
        self.tenancy.leaves(worker)
        self.machines.release(worker.presence)
        _log.info("worker.disconnected", worker=worker.hello.worker, invocations=worker.invocations)

    def release_order(self, names: Iterable[str]) -> list[str]:
        """Sort workers by the order in which to release them: idle ones first, the one that is idle longest at the
        front; then those that are not connected; then those that run a task.
        """
        idle = {worker.hello.worker: position for position, worker in enumerate(self._idle)}
        later = len(idle)
        return sorted(names, key=lambda name: idle.get(name, later + (name in self.connected)))

    async def disconnect(self, name: str) -> None:
        """End the stream of a worker whose process is gone; its task is given to another worker."""
        # First, so that a process of this name that comes late cannot attach while the end of the stream is waited for.
        self.tickets.void(name)
        self._launched_s.pop(name, None)
        if worker := self.connected.get(name):
            worker.lose()
        await self.connected.absent(name)
        # Whether a fresh one follows is up to its fleet, and counts once that is launched.
        self.tenancy.comes(name)

    async def drain(self, name: str, why: str = "released") -> None:
        """Drain a worker: give it no new task, wait until its task has finished, and ask it to exit.

        `why` is told to people who look at the pool meanwhile.
        """
        worker = self.connected.get(name)
        if worker is None:
            return
        worker.drain = why
        self._idle.remove(worker)
        while worker.running is not None and not worker.lost.done():
            await either(worker.running, worker.lost)
        if not worker.lost.done():
            try:
                await worker.send(pb.PoolMessage(drain=pb.Drain()))
            except grpc.aio.BaseError:
                worker.lose()

    def fail_waiting(self, reason: str, error: type[MarlessError] = UnavailableError) -> None:
        """Fail every waiting task, because no worker is available."""
        while self._waiting:
            waiter = self._waiting.take()
            if not waiter.done():
                waiter.set_exception(error(reason))

    def close(self, reason: str) -> None:
        """Accept no more tasks and fail the waiting ones; idempotent.

        They fail with UnreachableError, because another pool may soon serve this address.
        """
        self._closed = reason
        self.renewal.stop()
        self.fail_waiting(reason, UnreachableError)

    async def _traced_on(self, worker: Worker, task: pb.Task) -> pb.TaskResult:
        """Run an attempt, as a span of its own if the caller is traced."""
        scope = present()
        if scope is None or not scope.trace:
            return await self._run_on(worker, task)
        facts: Attributes = {
            "marless.task": task.id,
            "marless.attempt": task.attempt,
            "marless.worker": worker.hello.worker,
        }
        with traced("invocation", facts) as told:
            if inner := present():
                task.traceparent = header(inner)
            result = await self._run_on(worker, task)
            told |= {"marless.cold": result.invocation.cold, "marless.vcpu_s": result.invocation.vcpu_s}
            return result

    async def _run_on(self, worker: Worker, task: pb.Task) -> pb.TaskResult:
        running = worker.running
        assert running is not None  # set by _acquire
        # Before it is sent: from now on a late result of an earlier attempt is not taken for this one's.
        worker.expected, worker.invocations = (task.id, task.attempt), worker.invocations + 1
        self._task_begins(worker, task.id.partition("/")[0])
        worker.sending = asyncio.ensure_future(worker.send(pb.PoolMessage(task=task)))
        try:
            async with asyncio.timeout(task.timeout_s):
                await asyncio.shield(worker.sending)
                await either(running, worker.lost)
        except asyncio.CancelledError:
            self.attempts["cancelled"] += 1
            # It is told to stop, and kept: its fleet kills a worker that is given up, and a fresh one has to start.
            if not worker.lost.done() and not (running.done() and worker.sending.done()):
                recall = self._recalled[worker] = asyncio.create_task(self._take_back(worker, running, task))
                recall.add_done_callback(lambda _: self._recalled.pop(worker))
            raise
        except TimeoutError:
            _log.error("task.hung", task=task.id, worker=worker.hello.worker, timeout_s=task.timeout_s)
            raise WorkerHungError from None
        except grpc.aio.BaseError as error:  # the stream broke during the write
            _log.warning("task.not_sent", task=task.id, worker=worker.hello.worker, error=str(error))
        finally:
            # One that stops a cancelled task is released by `_take_back`, and gets no other task until then.
            if worker not in self._recalled:
                # One that has not answered is disconnected: its late result is ignored.
                if not running.done():
                    worker.lose()
                self._release(worker)
        # `_release` has cancelled it, because the worker is gone without a result.
        if running.cancelled():
            raise WorkerLostError
        return running.result()

    def _task_begins(self, worker: Worker, job: str) -> None:
        worker.job = job
        self.machines.begin(worker.presence, job)
        if worker.invocations == 1:
            worker.ready_s = worker.connected.seconds
            if worker.init_s:
                first_task_s = worker.init_s + worker.ready_s
                self.machines.starts.update({"workers": 1, "connect_s": worker.init_s, "first_task_s": first_task_s})

    def _task_ends(self, worker: Worker) -> None:
        if worker.job:
            self.machines.end(worker.presence, worker.job)
            worker.job = ""

    async def _take_back(self, worker: Worker, running: asyncio.Future[pb.TaskResult], task: pb.Task) -> None:
        """Have a worker stop a cancelled task; if it does not confirm within `CANCEL_GRACE_S`, disconnect it."""
        try:
            async with asyncio.timeout(CANCEL_GRACE_S):
                # The cancellation must come after its task on the stream, or the worker would run what nobody waits
                # for.
                await worker.sending
                cancel = pb.Cancel(id=task.id, attempt=task.attempt)
                await worker.send(pb.PoolMessage(cancel=cancel))
                await either(running, worker.lost)
        except TimeoutError:
            worker.lose()
            _log.warning("task.not_cancelled", task=task.id, worker=worker.hello.worker, grace_s=CANCEL_GRACE_S)
        except grpc.aio.BaseError as error:
            _log.warning("task.not_cancelled", task=task.id, worker=worker.hello.worker, error=str(error))
        finally:
            if not running.done():
                worker.lose()
            self._release(worker)

    async def _acquire(self, job: str, affinity: str, *, again: bool) -> Worker:
        if self._closed:
            raise UnreachableError(self._closed)
        home = self._last_workers.find(affinity)
        # An affinity only saves work: a task waits for no special worker, and none runs tasks of two jobs for it.
        fits = home and home in self._idle and home.tenant in (job, "")
        worker = home if fits else self._idle.find(job)
        if worker:
            self._idle.remove(worker)
            self._promise(worker, job)
        else:
            worker = await self._wait(job, again=again)
        if affinity:
            self._last_workers.put(affinity, worker)
        return worker

    async def _wait(self, job: str, *, again: bool) -> Worker:
        if len(self._waiting) >= self._queue_limit:
            raise OverloadedError(f"no room in the pool's queue: {self._queue_limit} tasks wait for a worker already")
        waiter: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting.add(job, waiter, again=again)
        self.renewal.make_room()
        try:
            return await waiter
        except asyncio.CancelledError:
            if not self._waiting.discard(job, waiter) and not waiter.cancelled() and waiter.exception() is None:
                self._release(waiter.result())  # a worker was assigned just as the task was cancelled
            raise

    def _release(self, worker: Worker) -> None:
        if worker.running is not None:
            worker.running.cancel()  # no effect if there is a result; otherwise it wakes those waiting for one
            worker.running = None
            self._task_ends(worker)
            if worker.tenant:
                self.tenancy.ends(worker)
        if worker.lost.done() or worker.drain:
            self.tenancy.leaves(worker)
            return
        if self.renewal.is_owed(worker):
            self.renewal.renew(worker)
            return
        while (job := self._next_job(worker)) is not None:
            waiter = self._waiting.take(job)
            # Its caller may have been cancelled a moment ago, and not have left the queue yet.
            if not waiter.done():
                self._promise(worker, job)
                waiter.set_result(worker)
                return
        self._idle.add(worker)
        self.renewal.make_room()

    def _promise(self, worker: Worker, job: str) -> None:
        worker.running = asyncio.get_running_loop().create_future()
        if self._apart:
            self.tenancy.begins(worker, job)

    def _next_job(self, worker: Worker) -> str | None:
        """The job whose task a worker gets; None if none waits that it may have."""
        if worker.tenant:
            return worker.tenant if self._waiting.waiting(worker.tenant) else None
        jobs = self._waiting.jobs
        return next((job for job in jobs if self.renewal.is_short(job)), next(iter(jobs), None))
