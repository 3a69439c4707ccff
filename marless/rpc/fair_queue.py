"""A fair queue: round-robin over jobs, first in first out within a job."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, KeysView
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)


class FairQueue(Generic[Waiter]):
    """A fair queue of waiters. Jobs are served in turn, however many waiters each has; all operations are O(1)."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, OrderedDict[Waiter, None]] = OrderedDict()
        """Jobs in the order of their turns; none is without waiters."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, job: str, waiter: Waiter, *, again: bool = False) -> None:
        """Enqueue a waiter; with `again`, before the other waiters of its job."""
        waiters = self._jobs.setdefault(job, OrderedDict())
        waiters[waiter] = None
        waiters.move_to_end(waiter, last=not again)
        self._count += 1

    @property
    def jobs(self) -> KeysView[str]:
        """The jobs with waiters, in the order of their turns."""
        return self._jobs.keys()

    def waiting(self, job: str) -> int:
        """How many waiters a job has."""
        return len(self._jobs.get(job, ()))

    def take(self, job: str = "") -> Waiter:
        """Dequeue the next waiter, of this job if one is given, whose turn it then was; raises KeyError without one."""
        job = job or next(iter(self._jobs), "")
        waiters = self._jobs.pop(job)
        waiter, _ = waiters.popitem(last=False)
        if waiters:
            # At the end, because it is the turn of the other jobs now.
            self._jobs[job] = waiters
        self._count -= 1
        return waiter

    def discard(self, job: str, waiter: Waiter) -> bool:
        """Remove a waiter; returns whether it was still queued."""
        waiters = self._jobs.get(job, OrderedDict())
        if waiter not in waiters:
            return False
        del waiters[waiter]
        if not waiters:
            del self._jobs[job]
        self._count -= 1
        return True
