"""The pool's side of a worker's stream: tasks wait in a bounded queue, run one at a time per worker, and are tried
again elsewhere when their worker dies or hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import structlog

from marless.errors import InternalError, OverloadedError, UnavailableError
from marless.rpc.errors import by_name
from marless.rpc.v1 import common_pb2

Send = Callable[[common_pb2.PoolMessage], Awaitable[None]]
_log = structlog.get_logger("marless.workers")


class WorkerLostError(Exception):
    """The worker's stream ended while it held a task; the task goes to another worker."""


class _Worker:
    """One connected worker."""

    def __init__(self, hello: common_pb2.WorkerHello, send: Send) -> None:
        self.hello = hello
        self.send = send
        self.invocations = 0
        self.affinity = ""
        self.lost = asyncio.Event()
        self.running: asyncio.Future[common_pb2.TaskResult] | None = None
        self.draining = False


class Dispatcher:
    """Assigns tasks to idle workers, oldest task first; a worker that ran the same `affinity` last is preferred."""

    def __init__(self, *, queue_limit: int = 4096, max_attempts: int = 3) -> None:
        self._queue_limit = queue_limit
        self._max_attempts = max_attempts
        self._workers: dict[str, _Worker] = {}
        self._idle: list[_Worker] = []
        self._waiting: deque[tuple[str, asyncio.Future[_Worker]]] = deque()
        self._changed = asyncio.Condition()

    @property
    def queued(self) -> int:
        """Tasks that wait for a worker."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """True while any task waits or runs."""
        return bool(self._waiting) or any(worker.running for worker in self._workers.values())

    def workers(self) -> list[common_pb2.WorkerInfo]:
        """The connected workers, in the order they came."""
        return [
            common_pb2.WorkerInfo(
                worker=name,
                pid=worker.hello.pid,
                host=worker.hello.host,
                busy=worker.running is not None,
                invocations=worker.invocations,
            )
            for name, worker in self._workers.items()
        ]

    def devices(self) -> list[str]:
        """The device each connected worker computes on."""
        return [worker.hello.device for worker in self._workers.values()]

    def is_connected(self, worker: str) -> bool:
        """True between a worker's hello and the end of its stream."""
        return worker in self._workers

    async def run(self, task: str, payload: bytes, *, timeout_s: float, affinity: str = "") -> common_pb2.TaskResult:
        """Run one task to its result on some worker.

        Raises OverloadedError if the queue is full, UnavailableError if workers die or hang `max_attempts` times,
        and whatever domain error the task itself ended with.
        """
        queued_s = time.time()
        for attempt in range(1, self._max_attempts + 1):
            worker = await self._acquire(affinity)
            try:
                result = await self._run_on(worker, task, payload, attempt, timeout_s)
            except WorkerLostError:
                _log.warning("task.worker_lost", task=task, worker=worker.hello.worker, attempt=attempt)
                continue
            if result.error_code:
                raise by_name(result.error_code, result.error)
            result.invocation.queued_s = queued_s
            return result
        raise UnavailableError(f"task {task}: its worker died or hung {self._max_attempts} times; see the pool's log")

    async def attach(self, messages: AsyncIterator[common_pb2.WorkerMessage], send: Send) -> None:
        """Serve one worker's stream until it ends; the body of a pool's Work RPC."""
        first = await anext(messages, None)
        if first is None or not first.HasField("hello"):
            raise InternalError("a worker's stream starts with its hello")
        worker = _Worker(first.hello, send)
        name = first.hello.worker
        self._workers[name] = worker
        self._release(worker)
        await self._notify()
        _log.info("worker.connected", worker=name, pid=first.hello.pid, host=first.hello.host)
        try:
            await self._listen(worker, messages)
        finally:
            worker.lost.set()
            self._workers.pop(name, None)
            if worker in self._idle:
                self._idle.remove(worker)
            _log.info("worker.disconnected", worker=name, invocations=worker.invocations)
            await self._notify()

    async def connected(self, names: list[str], quorum: Callable[[Iterable[bool]], bool] = all) -> None:
        """Wait until all (or any) of these workers are connected."""
        async with self._changed:
            await self._changed.wait_for(lambda: quorum(name in self._workers for name in names))

    async def disconnected(self, name: str) -> None:
        """Wait until this worker's stream has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: name not in self._workers)

    async def drain(self, name: str) -> None:
        """Ask a worker to leave once it has finished what it runs."""
        worker = self._workers.get(name)
        if worker is None or worker.draining:
            return
        worker.draining = True
        if worker in self._idle:
            self._idle.remove(worker)
        while worker.running is not None and not worker.lost.is_set():
            await asyncio.wait([worker.running])
        if not worker.lost.is_set():
            await worker.send(common_pb2.PoolMessage(drain=common_pb2.Drain()))

    def fail_waiting(self, reason: str) -> None:
        """Give every waiting task up: no worker can be had."""
        while self._waiting:
            _, waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(UnavailableError(reason))

    async def _listen(self, worker: _Worker, messages: AsyncIterator[common_pb2.WorkerMessage]) -> None:
        lost = asyncio.ensure_future(worker.lost.wait())
        try:
            while True:
                message = asyncio.ensure_future(anext(messages, None))
                await asyncio.wait([message, lost], return_when=asyncio.FIRST_COMPLETED)
                if not message.done():
                    message.cancel()
                    return
                received = message.result()
                if received is None:
                    return
                if worker.running is not None and not worker.running.done():
                    worker.running.set_result(received.result)
        finally:
            lost.cancel()

    async def _run_on(
        self, worker: _Worker, task: str, payload: bytes, attempt: int, timeout_s: float
    ) -> common_pb2.TaskResult:
        running: asyncio.Future[common_pb2.TaskResult] = asyncio.get_running_loop().create_future()
        worker.running = running
        worker.invocations += 1
        lost: asyncio.Future[object] = asyncio.ensure_future(worker.lost.wait())
        try:
            message = common_pb2.PoolMessage(task=common_pb2.Task(id=task, attempt=attempt, payload=payload))
            await worker.send(message)
            await asyncio.wait((running, lost), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            if not worker.lost.is_set():
                _log.error("task.hung", task=task, worker=worker.hello.worker, timeout_s=timeout_s)
            raise WorkerLostError
        finally:
            lost.cancel()
            if not running.done():
                worker.lost.set()  # hung, or given up in mid-task: its late result must not meet the next task
                running.cancel()
            worker.running = None
            self._release(worker)

    async def _acquire(self, affinity: str) -> _Worker:
        if self._idle:
            worker = next((idle for idle in self._idle if idle.affinity == affinity), self._idle[0])
            self._idle.remove(worker)
        else:
            if len(self._waiting) >= self._queue_limit:
                raise OverloadedError(f"{self._queue_limit} tasks wait for a worker already; try again later")
            waiter: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
            self._waiting.append((affinity, waiter))
            worker = await waiter
        worker.affinity = affinity
        return worker

    def _release(self, worker: _Worker) -> None:
        if worker.lost.is_set() or worker.draining:
            return
        while self._waiting:
            _, waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(worker)
                return
        self._idle.append(worker)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
