"""Accounts of machines: how long each machine of a pool's workers started, worked and waited, and for which job.

The time of a machine, from its beginning to its release, is divided completely between jobs:

- While tasks run on it, it works, for the jobs of these tasks, in proportion to their number.
- While none runs, it waits, for the job that had the last task there.
- Before a job's first task on a waiting machine, it starts for this job, from when the job asked for workers.
- Time before any job asked for workers belongs to none.

What a pool tells of its workers' machines: the answer to ListMachines.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from marless.core.limits import check_id
from marless.core.machine import Machine
from marless.rpc.v1 import common_pb2 as pb

EARLIER_S = 3600.0
"""A machine's time begins at most so long before the first hello of a worker there, whatever the worker says."""
FORGET_S = 600.0
"""Seconds without a request or a task after which a job's next request counts as its first."""
MOST_ACCOUNTS = 2**14
"""Accounts (a job on a machine) that are kept; those that changed longest ago are dropped."""
_MOST_JOBS = 2**12


@dataclass
class Account:
    """What one machine did for one job, in seconds of the machine."""

    starting_s: float = 0.0
    work_s: float = 0.0
    waiting_s: float = 0.0


@dataclass(eq=False)
class Presence:
    """A machine from its beginning to its release. Times are those of the pool's monotonic clock."""

    machine: Machine
    began_m: float
    began_s: float
    """The same moment as Unix time."""
    settled_m: float
    """Until when its time has been divided between jobs."""
    connected_after_s: float
    first_task_after_s: float = 0.0
    """Seconds from its beginning until a task began; 0: none yet."""
    workers: int = 0
    running: Counter[str] = field(default_factory=Counter)
    """Running tasks by job."""
    last: str = ""
    """The job that had the last task; "" if there was none."""
    is_released: bool = False

    @property
    def present_s(self) -> float:
        """Seconds of it that have been divided."""
        return self.settled_m - self.began_m


@dataclass(frozen=True)
class MachineUse:
    """An account and its machine, as a job is told."""

    presence: Presence
    account: Account
    is_last: bool
    """No other job has used the machine since."""


@dataclass
class _Want:
    since_m: float
    seen_m: float


class MachineAccounts:
    """The accounts of one pool. Costs a few microseconds per task, however many machines there are."""

    def __init__(
        self,
        launcher: str = "",
        kept: Callable[[], Collection[str]] = tuple,
        usd_h: Callable[[Machine], float | None] = lambda _: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`kept` tells which machines the launcher keeps without workers, and `usd_h` what it knows a machine to cost
        that does not say it. `clock` and `wall` are for tests."""
        self.launcher = launcher
        self._kept = kept
        self._usd_h = usd_h
        self._clock = clock
        self._wall = wall
        self._began_m = clock()
        self.present: dict[str, Presence] = {}
        """The machines now, by id."""
        self._empty: dict[str, Presence] = {}
        """Those of them that have no worker."""
        self._released_m: OrderedDict[str, float] = OrderedDict()
        """When machines were released that may come back."""
        self._accounts: OrderedDict[tuple[str, Presence], Account] = OrderedDict()
        self._wants: OrderedDict[str, _Want] = OrderedDict()
        self.starts: Counter[str] = Counter()
        """Of workers that the pool ordered and that have had a task: their number ("workers"), seconds from order to
        connection ("connect_s") and from order to first task ("first_task_s"), in all."""
        self.seconds: Counter[str] = Counter()
        """Of all machines by what they did: "starting", "work", "waiting"; "unused" before any job asked."""

    def want(self, job: str) -> None:
        """A job asks for workers: machines that begin from now on may do so for it."""
        now = self._clock()
        want = self._wants.setdefault(job, _Want(now, now))
        if now - want.seen_m > FORGET_S:
            want.since_m = now
        want.seen_m = now
        self._wants.move_to_end(job)
        while len(self._wants) > _MOST_JOBS:
            self._wants.popitem(last=False)

    def arrive(self, machine: Machine, took_s: float) -> Presence:
        """A worker has connected from this machine, `took_s` seconds after its order (0 if the pool ordered none)."""
        now = self._clock()
        # First: a machine that its launcher has meanwhile given up, and that comes back, begins anew.
        self._sweep()
        presence = self.present.get(machine.id)
        self._empty.pop(machine.id, None)
        if presence is None:
            # When it was launched, if that is told and possible, or ordered.
            begin = now - (self._wall() - machine.launched_s) if machine.launched_s else now - took_s
            # What a worker says can be wrong: no time is billed from before this pool, or twice after a release.
            earliest = max(now - EARLIER_S, self._began_m, self._released_m.get(machine.id, 0.0))
            begin = min(max(begin, earliest), now)
            began_s = self._wall() - (now - begin)
            presence = Presence(machine, begin, began_s, begin, connected_after_s=now - begin)
            self.present[machine.id] = presence
        presence.workers += 1
        return presence

    def release(self, presence: Presence) -> None:
        """A worker on this machine is gone; without any, the machine is released, unless its launcher keeps it."""
        presence.workers -= 1
        if not presence.workers:
            self._empty[presence.machine.id] = presence
        self._sweep()

    def begin(self, presence: Presence, job: str) -> None:
        """A task of this job begins on the machine; without effect if that was released meanwhile."""
        if presence.is_released:
            return
        now = self._clock()
        if not presence.running and (job, presence) not in self._accounts:
            want = self._wants.get(job)
            # Its start for this job begins when that asked for workers, but not before it was done with other jobs.
            self._divide_time(presence, min(max(want.since_m, presence.settled_m), now) if want else now)
            self._credit(presence, job, "starting", now - presence.settled_m)
            presence.settled_m = now
        self._divide_time(presence, now)
        presence.first_task_after_s = presence.first_task_after_s or now - presence.began_m
        presence.running[job] += 1
        presence.last = job
        if want := self._wants.get(job):
            want.seen_m = now

    def end(self, presence: Presence, job: str) -> None:
        """A task of this job has ended there."""
        if presence.is_released:
            return
        self._divide_time(presence, self._clock())
        presence.running[job] -= 1
        if not presence.running[job]:
            del presence.running[job]
        presence.last = job

    def of(self, job: str) -> list[MachineUse]:
        """What each machine has done for a job until now, in the order in which it began to."""
        self._sweep()
        now = self._clock()
        for presence in self.present.values():
            # Of a machine without a task, the time until now may still become the start for the job that has the first
            # one there.
            if presence.last:
                self._divide_time(presence, now)
        return [
            MachineUse(presence, account, presence.last == job)
            for (owner, presence), account in self._accounts.items()
            if owner == job
        ]

    def _sweep(self) -> None:
        """Release the machines that have no worker any more, and that no launcher keeps."""
        if not self._empty:
            return
        kept, now = set(self._kept()), self._clock()
        for name in [name for name in self._empty if name not in kept]:
            presence = self._empty.pop(name)
            self._divide_time(presence, now)
            presence.is_released = True
            del self.present[name]
            self._released_m[name] = now
            while len(self._released_m) > MOST_ACCOUNTS:
                self._released_m.popitem(last=False)

    def _divide_time(self, presence: Presence, now: float) -> None:
        """Divide the time of a machine until `now` between jobs."""
        # The launcher may learn the price only after the machine has come; it then holds for all of its time.
        if presence.machine.usd_h is None and (usd_h := self._usd_h(presence.machine)) is not None:
            presence.machine = replace(presence.machine, usd_h=usd_h)
        took_s, total = now - presence.settled_m, presence.running.total()
        for job, running in presence.running.items():
            self._credit(presence, job, "work", took_s * running / total)
        if not total:
            self._credit(presence, presence.last, "waiting" if presence.last else "unused", took_s)
        presence.settled_m = now

    def _credit(self, presence: Presence, job: str, what: str, seconds: float) -> None:
        if not seconds:
            return
        self.seconds[what] += seconds  # type: ignore[assignment]  # a counter of seconds
        if what == "unused":
            return
        account = self._accounts.setdefault((job, presence), Account())
        setattr(account, f"{what}_s", getattr(account, f"{what}_s") + seconds)
        self._accounts.move_to_end((job, presence))
        while len(self._accounts) > MOST_ACCOUNTS:
            self._accounts.popitem(last=False)


def used_by(job: str, machines: MachineAccounts) -> pb.ListMachinesResponse:
    """What each machine did for a job until now; raises SpecError for an id that no job has."""
    check_id(job)
    return pb.ListMachinesResponse(launcher=machines.launcher, machines=map(_told, machines.of(job)))


def _told(use: MachineUse) -> pb.MachineUse:
    presence, account = use.presence, use.account
    return pb.MachineUse(
        machine=pb.Machine(**vars(presence.machine)),
        began_s=presence.began_s,
        connected_after_s=presence.connected_after_s,
        first_task_after_s=presence.first_task_after_s,
        present_s=presence.present_s,
        starting_s=account.starting_s,
        work_s=account.work_s,
        waiting_s=account.waiting_s,
        is_released=presence.is_released and use.is_last,
        is_held=not presence.is_released and use.is_last and not presence.running,
    )
