"""The idle workers of a pool, by the job to which they belong."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator

from marless.fleet.attached import Worker


class Idle:
    """The idle workers, in the order in which they became idle."""

    def __init__(self) -> None:
        self._all: OrderedDict[Worker, None] = OrderedDict()
        self._of: defaultdict[str, OrderedDict[Worker, None]] = defaultdict(OrderedDict)
        """Those of each job; under "" those that belong to none."""

    def __contains__(self, worker: Worker) -> bool:
        return worker in self._all

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all)

    def add(self, worker: Worker) -> None:
        """Note that a worker has become idle."""
        self._all[worker] = self._of[worker.tenant][worker] = None

    def remove(self, worker: Worker) -> None:
        """Note that a worker is not idle any more; nothing happens if it was not."""
        if worker in self._all:
            del self._all[worker], self._of[worker.tenant][worker]
            if not self._of[worker.tenant]:
                del self._of[worker.tenant]

    def find(self, job: str) -> Worker | None:
        """The worker of a job that has been idle longest, else one that belongs to none; None if there is neither."""
        return next((next(iter(self._of[of])) for of in (job, "") if of in self._of), None)

    def of_others(self, job: str) -> Iterator[Worker]:
        """The workers that belong to other jobs, the one that has been idle longest first."""
        return (worker for worker in self._all if worker.tenant not in (job, ""))
