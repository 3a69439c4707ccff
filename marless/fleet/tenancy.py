"""Tells to which job each worker of a pool belongs, and when it is taken from that job for another one.

An environment can change its process in ways that nobody can undo: closed descriptors, the working directory, handlers
of signals, threads, replaced functions of modules, limits. So a worker that has run a task of one job runs none of
another: it exits, and a fresh one comes in its place. A job keeps its workers while it uses them: what it is taken
depends on shares of equal size. `Tenancy` counts, `Renewal` decides which workers are replaced.

What remains of attempts at a task whose workers were lost: their invocations, and the errors of a task given up.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Collection, Sized

import grpc

from marless.core.errors import UnavailableError
from marless.core.log import structlog
from marless.core.stopwatch import Stopwatch
from marless.fleet.workers import ConnectedWorkers, Idle, Worker
from marless.rpc.admission import FairQueue
from marless.rpc.v1 import common_pb2 as pb

IDLE_S = 1.0
"""Seconds after which an idle worker is taken from a job that has no more than its share."""
TURN_S = 2.0
"""Seconds for which a worker stays with a job before one with less than its share gets it: a fresh one takes 0.2 s."""
DISMISSAL_S = 5.0
"""Seconds that a worker without a task may take to exit before it is disconnected."""
RENEWED_S = 10.0
"""Seconds within which a fresh worker is expected in the place of one that was asked to exit."""
_log = structlog.get_logger("marless.workers")


class Tenancy:
    """Counts the workers of each job. Times are those of the monotonic clock."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()
        self._busy: Counter[str] = Counter()
        """Of these, those that run a task."""
        self._coming: dict[str, float] = {}
        """Name → until when it is expected: workers that were asked to exit, whose successors are not launched yet."""

    def begins(self, worker: Worker, job: str) -> None:
        """Note that a worker gets a task of a job, to which it belongs from now on."""
        if not worker.tenant:
            worker.tenant, worker.tenant_since_s = job, time.monotonic()
            self._held[job] += 1
        self._busy[job] += 1

    def ends(self, worker: Worker) -> None:
        """Note that the task of a worker has ended."""
        self._less(self._busy, worker.tenant)
        worker.idle_since_s = time.monotonic()

    def leaves(self, worker: Worker) -> None:
        """Note that a worker, which runs no task, is gone or about to go; calling it twice is safe."""
        if worker.tenant and not worker.retired:
            worker.retired = True
            self._less(self._held, worker.tenant)

    def renewed(self, name: str) -> None:
        """Note that a worker was asked to exit, so that a fresh one comes in its place."""
        self._coming[name] = time.monotonic() + RENEWED_S

    def is_renewed(self, name: str) -> bool:
        """True from `renewed` until a worker of this name is launched or has come."""
        return name in self._coming

    def comes(self, name: str) -> None:
        """Note that a worker of this name is being launched, or has come."""
        self._coming.pop(name, None)

    @property
    def coming(self) -> int:
        """Number of workers that are expected in the place of others."""
        now_s = time.monotonic()
        # A successor that never comes must not keep other workers from being replaced for ever.
        return sum(until_s > now_s for until_s in self._coming.values())

    def busy_for_others(self, job: str) -> int:
        """Number of workers that run tasks of other jobs."""
        return self._busy.total() - self._busy[job]

    def is_short(self, job: str, more: int, waiting: Collection[str], workers: int) -> bool:
        """True if a job has, with so many `more`, less than its share of `workers`, which the jobs with tasks share."""
        jobs = len({*waiting, *self._busy})
        return self._held[job] + more < max(1, workers // max(1, jobs))

    @staticmethod
    def _less(counts: Counter[str], job: str) -> None:
        if counts[job] > 1:
            counts[job] -= 1
        else:
            del counts[job]


class Renewal:
    """Decides which workers of a pool are replaced, and asks them to exit.

    It looks at the collections of the pool's dispatcher, which stay the dispatcher's: idle workers, waiting tasks,
    connected workers, and the names of those that are being launched.
    """

    def __init__(
        self,
        tenancy: Tenancy,
        idle: Idle,
        waiting: FairQueue[asyncio.Future[Worker]],
        connected: ConnectedWorkers,
        launched: Sized,
    ) -> None:
        self._tenancy = tenancy
        self._idle = idle
        self._waiting = waiting
        self._connected = connected
        self._launched = launched
        self._asked: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        """When it looks anew for idle workers to replace."""
        self._stopped = False

    def is_short(self, job: str, more: int = 0) -> bool:
        """True if a job has less than its share of the workers, also with so many more."""
        workers = len(self._connected) + len(self._launched)
        return self._tenancy.is_short(job, more, self._waiting.jobs, workers)

    def is_owed(self, worker: Worker) -> bool:
        """True if a worker has had its turn with its job, and another job waits with less than its share."""
        # Those that are coming suffice for what waits.
        if not worker.tenant or len(self._waiting) <= self._coming:
            return False
        had_s = time.monotonic() - worker.tenant_since_s
        return had_s >= TURN_S and any(job != worker.tenant and self.is_short(job) for job in self._waiting.jobs)

    def prepare(self, job: str, workers: int) -> None:
        """Replace workers that other jobs do not use any more, until this job has or gets so many."""
        lacking = workers - self._coming - sum(each.tenant in (job, "") for each in self._connected.values())
        for worker in list(self._idle.of_others(job))[: max(lacking, 0)]:
            if time.monotonic() - worker.idle_since_s >= IDLE_S:
                self.renew(worker)

    def make_room(self) -> None:
        """Replace idle workers of other jobs for tasks that wait, or look again when they have been idle for long."""
        if self._stopped:
            return
        # No more workers are replaced than there are tasks beyond those for which one is coming, because each has to
        # start.
        lacking, now_s = len(self._waiting) - self._coming, time.monotonic()
        for job in tuple(self._waiting.jobs):
            most = max(min(lacking, self._waiting.waiting(job)), 0)
            for given, worker in enumerate(list(itertools.islice(self._idle.of_others(job), most))):
                free_s = worker.idle_since_s + IDLE_S
                if self.is_short(job, given):
                    free_s = min(free_s, worker.tenant_since_s + TURN_S)
                if (wait_s := free_s - now_s) > 0:
                    self._look_again(wait_s)
                    break
                self.renew(worker)
                lacking -= 1
        if self._waiting and self._tenancy.coming:
            self._look_again(RENEWED_S)  # unless they have come by then

    def renew(self, worker: Worker) -> None:
        """Have a worker without a task exit; its fleet launches a fresh one in its place."""
        self._idle.remove(worker)
        worker.drain = "another job needs a worker"
        self._tenancy.renewed(worker.hello.worker)
        self._tenancy.leaves(worker)
        _log.info("worker.renewed", worker=worker.hello.worker, job=worker.tenant)
        asked = asyncio.create_task(_dismiss(worker))
        # asyncio itself refers to a task only weakly, so that it could be collected while it runs.
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)

    def stop(self) -> None:
        """Replace no more workers; idempotent."""
        self._stopped = True
        if self._again:
            self._again.cancel()

    @property
    def _coming(self) -> int:
        """Workers that are being launched, or expected in the place of others."""
        return len(self._launched) + self._tenancy.coming

    def _look_again(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        # One timer serves all: it keeps the earliest time, and each look asks for the next one.
        if self._again is None or self._again.cancelled() or self._again.when() > loop.time() + wait_s:
            if self._again:
                self._again.cancel()
            self._again = loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        self._again = None
        self.make_room()


async def _dismiss(worker: Worker) -> None:
    try:
        await worker.send(pb.PoolMessage(drain=pb.Drain(renew=True)))
        await asyncio.wait([worker.lost], timeout=DISMISSAL_S)
    except grpc.aio.BaseError as error:
        _log.warning("worker.not_told", worker=worker.hello.worker, error=str(error))
    # Whether it has exited or not: its fleet kills what is left of a worker whose stream has ended.
    worker.lose()


MAX_ATTEMPTS = 8
"""Workers that a task may lose before it fails. If one attempt in a hundred is lost, as on spot machines, a job of
1,000 actors and 10,000 rounds ends by it with a probability of 10^7 · 0.01^8 = 10^-9."""
MAX_TIMEOUTS = 2
"""Workers on which a task may exceed its time limit before it fails. The first one may have been paused or hung, so the
task is retried elsewhere; if that also takes too long, the task itself is too slow."""


def too_slow(task: str, timeout_s: float, setting: str) -> UnavailableError:
    """The error of a task that exceeded its time limit on too many workers."""
    return UnavailableError(
        f"task {task} took longer than {setting} = {timeout_s:g} s on each of {MAX_TIMEOUTS} workers, and would again; "
        f"raise {setting}, or have it do less"
    )


def given_up(task: str, died: int, hung: int) -> UnavailableError:
    """The error of a task that has lost too many workers."""
    ways = " and ".join(f"{count} {how}" for count, how in ((died, "died"), (hung, "hung")) if count)
    return UnavailableError(
        f"task {task}: of {died + hung} workers that ran it, {ways}; the pool's log says how each ended"
    )


def lost(task: str, attempt: int, worker: Worker, started: Stopwatch, waited_s: float) -> pb.Invocation:
    """The invocation of an attempt whose worker was lost: billed until now, with unknown CPU time."""
    cold = worker.invocations <= 1
    return pb.Invocation(
        id=task,
        attempt=attempt,
        worker=worker.hello.worker,
        machine=worker.presence.machine.id,
        queued_s=started.started_s - waited_s,
        start_s=started.started_s,
        end_s=started.now_s,
        cold=cold,
        init_s=worker.init_s if cold else 0.0,
        ready_s=worker.ready_s if cold else 0.0,
    )
