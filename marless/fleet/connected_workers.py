"""Which workers are connected to a pool, who waits for one to come or go, and which worker knows a lane.

An arrival or a departure wakes only those that wait for this worker, so that its cost does not grow with the pool.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from weakref import WeakValueDictionary

from marless.fleet.attached import Worker

Waits = MutableMapping[str, asyncio.Event]


class ConnectedWorkers(Mapping[str, Worker]):
    """The connected workers by name, in the order in which they connected."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        # An event lasts as long as somebody waits for it.
        self._arrivals: Waits = WeakValueDictionary()
        self._departures: Waits = WeakValueDictionary()
        self._any = asyncio.Event()

    def __getitem__(self, name: str) -> Worker:
        return self._workers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def arrive(self, name: str, worker: Worker) -> None:
        """Note that a worker has connected; it replaces another one of its name."""
        self._workers[name] = worker
        self._any.set()
        if waiting := self._arrivals.pop(name, None):
            waiting.set()

    def release(self, name: str, worker: Worker) -> None:
        """Note that a worker's stream has ended, unless another worker has its name by now."""
        if self._workers.get(name) is not worker:
            return
        del self._workers[name]
        if not self._workers:
            self._any.clear()
        if waiting := self._departures.pop(name, None):
            waiting.set()

    async def present(self, names: Iterable[str]) -> None:
        """Wait until all of these workers are connected at the same time."""
        wanted = tuple(names)
        # One that was there may have gone while another one was waited for.
        while not all(name in self._workers for name in wanted):
            for name in wanted:
                while name not in self._workers:
                    await _event(self._arrivals, name).wait()

    async def absent(self, name: str) -> None:
        """Wait until this worker is not connected."""
        while name in self._workers:
            await _event(self._departures, name).wait()

    async def some(self) -> None:
        """Wait until any worker is connected."""
        while not self._workers:
            await self._any.wait()


def _event(waits: Waits, name: str) -> asyncio.Event:
    if (event := waits.get(name)) is None:
        event = waits[name] = asyncio.Event()
    return event


class LastWorkers:
    """The worker that had the last task of each affinity, for the `most` affinities used last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._workers: OrderedDict[str, Worker] = OrderedDict()
        self._known: defaultdict[Worker, set[str]] = defaultdict(set)

    def find(self, affinity: str) -> Worker | None:
        """The worker that had the last task of this affinity; None if there is none, or it is gone."""
        return self._workers.get(affinity)

    def put(self, affinity: str, worker: Worker) -> None:
        """Note that a worker gets a task of this affinity."""
        self._discard(affinity)
        self._workers[affinity] = worker
        self._known[worker].add(affinity)
        while len(self._workers) > self._most:
            self._discard(next(iter(self._workers)))

    def release(self, worker: Worker) -> None:
        """Forget a worker that is gone."""
        for affinity in self._known.pop(worker, ()):
            del self._workers[affinity]

    def _discard(self, affinity: str) -> None:
        if worker := self._workers.pop(affinity, None):
            self._known[worker].discard(affinity)
