"""Keeps the wanted number of workers of a pool running, and releases them after a long idle time.

Orders of workers that arrive together go to the launcher as one batch. The pool's metrics are here, too.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Coroutine, Sequence

from prometheus_client.metrics_core import Metric

from marless.core.errors import MarlessError, OverloadedError, SpecError, UnavailableError, UnreachableError, told
from marless.core.limits import MAX_ACTORS
from marless.core.log import structlog
from marless.fleet.dispatch import Dispatcher
from marless.fleet.launchers.base import Launch, Launcher, LaunchOrder, LaunchOutcome, Leaving
from marless.rpc.metrics import counter, gauge
from marless.rpc.v1 import common_pb2 as pb

REFUSED_S = 5.0
"""Seconds after which a worker that the launcher had no room for is ordered again."""
SPARE_STREAMS = 64
"""Streams of a pool that nobody may dial in to: those whose worker has just ended, or shows no ticket."""
DRAIN_S = 5.0
"""Seconds that a released worker may take to exit."""
TOLD_S = 1.0
"""Seconds after the end of a worker's stream in which its launcher may say how it ended; a hung one is then killed."""
_STILLBORN_LIMIT = 3
_PASSING_ENDS = ("killed by signal 9", "killed,", "not connected")
"""How the ends of workers begin that a moment without memory, or a busy machine, brings about before they connect."""
_LONGEST_NAP_S = 60.0
_STOPPING = "the pool is stopping"
_SEE_LOG = "see the pool's log"
_NONE_STARTED = "this pool starts none: docs/operating.md says how to start some"
_log = structlog.get_logger("marless.workers")


class Fleet:
    """The life cycle of one pool's workers, from launch to exit; an async context manager.

    A worker that dies is replaced at once. If launches fail three times in a row before a worker connects, the
    installation is considered broken: waiting tasks fail with the reason, and the next request tries again. If the
    launcher refuses to start a worker, or workers are killed or too slow before they connect, as on a machine without
    memory, and none is connected, waiting tasks fail with OverloadedError, so that their jobs show what they wait for.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        launcher: Launcher,
        *,
        prefix: str,
        limit: int,
        keep_alive_s: float,
        warm: int = 0,
        arguments: Sequence[str] = (),
    ) -> None:
        """`limit` is the largest number of workers; with 0, the fleet starts none, and uses those that dial in.

        `arguments` are those of this fleet's workers in addition to the launcher's.
        """
        self._dispatcher = dispatcher
        self._launcher = launcher
        self._batches = Batches(launcher)
        self._prefix = prefix
        self._arguments = tuple(arguments)
        self._serials = itertools.count()
        self._limit = limit
        self._keep_alive_s = keep_alive_s
        self._used_s = time.monotonic()
        self._wanted = min(warm, limit)
        self._stillborn = 0
        self._given_up = False
        self._refusal = ""
        """Why the launcher did not accept the last order; "" if it did."""
        self._refused = asyncio.Event()
        """Set while the launcher has no room."""
        self._without_room: set[str] = set()
        """Workers whose last order the launcher has refused."""
        self._stopped = False
        self._tasks: dict[str, asyncio.Task[str]] = {}
        """Worker → the task that keeps it running; the task returns the reason if it gives up."""
        self._retiring: set[str] = set()
        self._reaper: asyncio.Task[None] | None = None
        self._scaling = asyncio.Lock()
        self._awaited = 0
        """Number of callers waiting for workers to connect; meanwhile the fleet does not count as idle."""

    async def __aenter__(self) -> Fleet:
        self._reaper = asyncio.create_task(self._reap())
        self._start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Kill all workers at once, and fail running and waiting tasks; idempotent."""
        self._stopped = True
        # First, so that no task goes to a worker that is about to be killed.
        self._dispatcher.close(_STOPPING)
        tasks = [*self._tasks.values(), *([self._reaper] if self._reaper else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._batches.stop(), return_exceptions=True)

    @property
    def size(self) -> int:
        """Number of workers that it has or is starting, with those that have dialled in by themselves."""
        return max(self._wanted, len(self._dispatcher.connected))

    def most_streams(self) -> int:
        """How many streams of workers the pool may have now: twice its workers, because those that lost their
        connection may connect anew before the old stream has ended, and room for those that may dial in.
        """
        return 2 * self.size + (2 * MAX_ACTORS if self._dispatcher.tickets.others else SPARE_STREAMS)

    def listed(self) -> pb.ListWorkersResponse:
        """The workers, and what the pool has for further ones: the answer to ListWorkers."""
        machines = self._dispatcher.machines
        return pb.ListWorkersResponse(
            workers=self._dispatcher.workers(),
            queued=self._dispatcher.queued,
            launcher=machines.launcher,
            limit=self._limit,
            starting=self._dispatcher.starting,
            room=self._launcher.capacity(),
            refused=self._refusal,
            machines=[
                pb.MachineInfo(
                    machine=pb.Machine(**vars(each.machine)), workers=each.workers, tasks=each.running.total()
                )
                for each in machines.present.values()
            ],
        )

    async def ready(self) -> bool:
        """False while no worker is available: the last launches failed and none is connected."""
        return not self._given_up or bool(self._dispatcher.connected)

    async def ensure(self, workers: int) -> None:
        """Start workers until there are this many or the pool's limit is reached; returns once one is connected.

        Existing workers are never removed. Raises UnavailableError if none connects, and OverloadedError, for which
        jobs wait, if the launcher refuses to start one.
        """
        self.expect(workers)
        if self._dispatcher.connected:
            return
        self._awaited += 1  # or the idle fleet would be released again
        try:
            async with self._scaling:  # workers that are being released do not come back: `_fit` then starts others
                pass
            await self._connected(self._dispatcher.connected.some())
        finally:
            self._awaited -= 1

    def expect(self, workers: int) -> None:
        """Start workers as `ensure` does, but return at once, without waiting for a connection."""
        self._used_s = time.monotonic()
        self._wanted = max(self._wanted, min(workers, self._limit))
        self._start()

    async def scale(self, workers: int) -> None:
        """Scale to exactly this many connected workers; surplus workers are drained.

        Raises SpecError for a number outside the pool's limits, UnavailableError if workers do not connect.
        """
        if not 0 <= workers <= self._limit:
            raise SpecError(f"{workers} workers asked for; this pool has 0 to {self._limit} (--{self._prefix}-workers)")
        self._wanted = workers
        await self._fit()
        await self._connected(self._dispatcher.connected.present(list(self._tasks)))

    async def _fit(self) -> None:
        """Start or drain workers until their number is the wanted one."""
        async with self._scaling:
            self._start()
            while (surplus := len(self._tasks) - self._wanted) > 0:
                # Those for which there is no room go first, so that what runs is kept.
                names = self._dispatcher.release_order(self._tasks)
                order = sorted(names, key=lambda name: name not in self._without_room)
                await asyncio.gather(*map(self._retire, order[:surplus]))
            self._start()  # the wanted number may have grown during the drain

    def _start(self) -> None:
        if self._stopped:
            raise UnreachableError(_STOPPING)
        for name in [name for name, task in self._tasks.items() if task.done()]:
            del self._tasks[name]
        while len(self._tasks) < self._wanted:
            name = f"{self._prefix}-{next(self._serials)}"
            self._tasks[name] = asyncio.create_task(self._keep(name))

    async def _connected(self, condition: Coroutine[None, None, None]) -> None:
        """Wait for workers to connect; raises UnavailableError if that fails or takes too long, and OverloadedError at
        once if there is none and the launcher refuses to start one.
        """
        # A copy, because one that gives up is dropped from the fleet as soon as others are started, and its reason with
        # it.
        tasks = dict(self._tasks)
        ready = asyncio.create_task(condition)
        refused = asyncio.create_task(self._refused.wait())
        # A worker's task ends only once it gives up, or is released.
        deciding = [ready, *tasks.values(), *([] if self._dispatcher.connected else [refused])]
        connect_s = self._launcher.connect_s
        self._awaited += 1
        try:
            await asyncio.wait(deciding, timeout=connect_s, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                if self._stopped:
                    raise UnreachableError(_STOPPING)
                if refused.done():
                    raise OverloadedError(f"no {self._prefix} workers: {self._refusal}")
                ended = (task for task in tasks.values() if task.done())
                hint = self._refusal or (_SEE_LOG if self._limit else _NONE_STARTED)
                late = f"no {self._prefix} worker connected within {connect_s:g} s; {hint}"
                raise UnavailableError(next((task.result() for task in ended if not task.cancelled()), late))
        finally:
            ready.cancel()
            refused.cancel()
            self._awaited -= 1
            self._used_s = time.monotonic()

    async def _keep(self, name: str) -> str:
        """Launch this worker, and relaunch it whenever it ends; returns the reason once it gives up."""
        while True:
            started_s = time.monotonic()
            try:
                launch = await self._launch(name)
                if launch.outcome is LaunchOutcome.FAILED:
                    return self._give_up(launch.reason)
                if launch.outcome is LaunchOutcome.REFUSED:
                    await asyncio.sleep(REFUSED_S)
                    continue
                how = await self._until_gone(name)
            finally:
                # Also if this is cancelled: nothing that was started under this name may be left when the name is
                # ordered again.
                renewed = self._dispatcher.tenancy.is_renewed(name)
                # A worker that was asked to exit gets time for it; any other one is killed, if it is not gone already.
                await self._launcher.drain(name, DRAIN_S if renewed or name in self._retiring else 0.0)
                await self._dispatcher.disconnect(name)
            if name in self._retiring:
                return "released"
            if renewed:
                continue
            _log.warning("worker.ended", worker=name, how=how, after_s=round(time.monotonic() - started_s, 3))
            if self._stillborn >= _STILLBORN_LIMIT:
                reason = f"worker {name} could not start ({how}); see the pool's log"
                if not how.startswith(_PASSING_ENDS):
                    return self._give_up(reason)
                self._report_refusal(name, reason)
                await asyncio.sleep(REFUSED_S)

    def _report_refusal(self, name: str, reason: str) -> None:
        """Tell whoever waits why this worker cannot run for now; jobs wait for it as long as their patience lasts."""
        self._refusal = reason
        self._refused.set()
        self._without_room.add(name)
        if not self._dispatcher.connected:
            self._dispatcher.fail_waiting(f"no {self._prefix} workers: {reason}", OverloadedError)

    async def _launch(self, name: str) -> Launch:
        ticket = self._dispatcher.launching(name)
        _log.info("worker.launched", worker=name, workers=len(self._tasks), limit=self._limit)
        launch = await self._batches.launch(LaunchOrder(name, ticket, self._arguments))
        if launch.outcome in (LaunchOutcome.REFUSED, LaunchOutcome.FAILED):
            self._dispatcher.not_launched(name)
        if launch.outcome in (LaunchOutcome.REFUSED, LaunchOutcome.UNKNOWN):
            _log.warning(f"worker.{launch.outcome.value}", worker=name, reason=launch.reason)
        if launch.outcome is LaunchOutcome.REFUSED:
            self._report_refusal(name, launch.reason)
        else:
            self._refusal = launch.reason
            self._refused.clear()
            self._without_room.discard(name)
        return launch

    def _give_up(self, reason: str) -> str:
        self._given_up = True
        _log.error("worker.given_up", reason=reason)
        if not self._dispatcher.connected:
            self._dispatcher.fail_waiting(reason)
        return reason

    async def _until_gone(self, name: str) -> str:
        """Wait until the process or its stream ends (the stream of a hung worker is closed); returns how it ended."""
        ended = asyncio.create_task(self._launcher.observe(name))
        stream = asyncio.create_task(self._dispatcher.connected.present([name]))
        leaving: asyncio.Task[None] | None = None
        connect_s = self._launcher.connect_s
        try:
            await asyncio.wait([ended, stream], timeout=connect_s, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() or not stream.done():
                self._stillborn += 1
                return ended.result() if ended.done() else f"not connected within {connect_s:g} s"
            self._stillborn, self._given_up = 0, False
            stream = asyncio.create_task(self._dispatcher.connected.absent(name))
            leaving = asyncio.create_task(self._announce_end(name))
            await asyncio.wait([ended, stream], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([ended], timeout=TOLD_S)  # of a worker that died, the stream often ends first
            return ended.result() if ended.done() else "stream ended"
        finally:
            for task in (ended, stream, *([leaving] if leaving else [])):
                task.cancel()

    async def _announce_end(self, name: str) -> None:
        """Have a worker finish its task and exit once its machine is about to end; another one takes its place."""
        if isinstance(self._launcher, Leaving):
            why = await self._launcher.leaving(name)
            _log.info("worker.leaves", worker=name, why=why)
            await self._dispatcher.drain(name, f"its machine ends: {why}")

    async def _retire(self, name: str) -> None:
        """Release a worker after its task; it exits by itself, and is killed if that takes too long."""
        task = self._tasks[name]
        _log.info("worker.released", worker=name, workers=len(self._tasks) - 1)
        self._retiring.add(name)
        try:
            if name in self._dispatcher.connected:
                await self._dispatcher.drain(name, "fewer workers are wanted")
                await asyncio.wait([task], timeout=DRAIN_S)
        finally:
            # From here on, one that has not exited in time gets none: it is killed when its task is cancelled.
            self._retiring.discard(name)
            self._without_room.discard(name)
            self._tasks.pop(name, None)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(min(self._keep_alive_s / 4, _LONGEST_NAP_S))
            idle_s = time.monotonic() - self._used_s
            if self._awaited or self._dispatcher.busy:
                self._used_s = time.monotonic()
            elif self._tasks and idle_s >= self._keep_alive_s:
                _log.info("workers.idle", workers=len(self._tasks), idle_s=round(idle_s))
                self._wanted = 0
                await self._fit()


class Batches:
    """Sends orders to a launcher, one batch at a time; orders that arrive meanwhile are the next batch."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._waiting: list[tuple[LaunchOrder, asyncio.Future[Launch]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def launch(self, order: LaunchOrder) -> Launch:
        """Launch a worker. If the caller is cancelled, the worker is drained as soon as the launcher has answered."""
        answer: asyncio.Future[Launch] = asyncio.get_running_loop().create_future()
        self._waiting.append((order, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())
        return await answer

    async def stop(self) -> None:
        """Send nothing more; what was launched is left to the launcher's `close`."""
        self._waiting.clear()
        if self._sending:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        while self._waiting:
            # Nothing is launched for a caller that is gone: nobody would drain it.
            batch = [(order, answer) for order, answer in self._waiting if not answer.done()]
            self._waiting.clear()
            answers = await self._answers([order for order, _ in batch])
            for (order, answer), launch in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(launch)
                elif launch.outcome in (LaunchOutcome.ACCEPTED, LaunchOutcome.UNKNOWN):
                    await self._launcher.drain(order.worker, 0.0)

    async def _answers(self, orders: list[LaunchOrder]) -> list[Launch]:
        try:
            answers = list(await self._launcher.launch(orders))
        except MarlessError as error:
            return [Launch(LaunchOutcome.FAILED, str(error))] * len(orders)
        except Exception as error:  # noqa: BLE001  # a bug of third parties: the workers may run all the same
            return [Launch(LaunchOutcome.UNKNOWN, f"the launcher failed: {told(error)}")] * len(orders)
        if len(answers) != len(orders):
            return [
                Launch(LaunchOutcome.UNKNOWN, f"the launcher gave {len(answers)} answers to {len(orders)} orders")
            ] * len(orders)
        return answers


def worker_figures(dispatcher: Dispatcher) -> list[Metric]:
    """Connected workers, queued tasks, finished attempts by outcome, machines, and how long workers took to start."""
    machines = dispatcher.machines
    starts = {what: {machines.launcher: machines.starts[what]} for what in ("workers", "connect_s", "first_task_s")}
    states = Counter("busy" if worker.busy else "idle" for worker in dispatcher.workers())
    attempts = {outcome: dispatcher.attempts[outcome] for outcome in ("done", "failed", "lost")}
    return [
        gauge("workers", "Connected workers.", {state: states[state] for state in ("busy", "idle")}, by="state"),
        gauge(
            "workers_without_their_gpu",
            "Connected workers that compute on the CPU of a machine that has a GPU.",
            sum(worker.lacks_gpu for _, worker in dispatcher.connected.items()),
        ),
        gauge("tasks_queued", "Tasks that wait for a worker.", dispatcher.queued),
        counter("task_attempts", "Attempts at tasks, by how they ended.", attempts, by="outcome"),
        gauge("machines", "Machines of workers.", len(machines.present)),
        counter("machine_seconds", "Seconds of machines, by what they did.", machines.seconds, by="activity"),
        counter("worker_starts", "Workers that were ordered and have had a task.", starts["workers"], by="launcher"),
        counter(
            "worker_connect_seconds", "Their seconds from order to connection.", starts["connect_s"], by="launcher"
        ),
        counter(
            "worker_first_task_seconds",
            meaning="Their seconds from order to first task.",
            values=starts["first_task_s"],
            by="launcher",
        ),
    ]
