"""Who is next when several jobs wait: jobs take turns, and within a job the oldest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)


class Turns(Generic[Waiter]):
    """Waiters of several jobs. A job with many of them gets no more turns than one with few; all steps are O(1)."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, OrderedDict[Waiter, None]] = OrderedDict()
        """The job whose turn is next comes first; none is without waiters."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, job: str, waiter: Waiter, *, again: bool = False) -> None:
        """Let a waiter wait; one that waits `again` goes before its job's others."""
        waiters = self._jobs.setdefault(job, OrderedDict())
        waiters[waiter] = None
        waiters.move_to_end(waiter, last=not again)
        self._count += 1

    def take(self) -> Waiter:
        """The next one, who no longer waits; raises KeyError if there is none."""
        job, waiters = self._jobs.popitem(last=False)
        waiter, _ = waiters.popitem(last=False)
        if waiters:
            self._jobs[job] = waiters
        self._count -= 1
        return waiter

    def discard(self, job: str, waiter: Waiter) -> bool:
        """Forget a waiter; returns whether it still waited."""
        waiters = self._jobs.get(job, OrderedDict())
        if waiter not in waiters:
            return False
        del waiters[waiter]
        if not waiters:
            del self._jobs[job]
        self._count -= 1
        return True
