"""To which job each worker of a pool belongs, and when it is taken from that job for another one.

An environment can change its process in ways that nobody can undo: closed descriptors, the working directory, handlers
of signals, threads, replaced functions of modules, limits. So a worker that has run a task of one job runs none of
another: it exits, and a fresh one comes in its place. A job keeps its workers while it uses them: what it is taken
depends on shares of equal size.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection

from marless.fleet.attached import Worker

IDLE_S = 1.0
"""Seconds after which an idle worker is taken from a job that has no more than its share."""
TURN_S = 2.0
"""Seconds for which a worker stays with a job before one with less than its share gets it: a fresh one takes 0.2 s."""
RENEWED_S = 10.0
"""Seconds within which a fresh worker is expected in the place of one that was asked to exit."""


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
        """Note that a worker, which runs no task, is gone or about to go."""
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
