"""Clients of the parameter store that record what they asked and what came of it, and a load for them."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from marless.core.errors import ConflictError, FencedError, NotFoundError, UnavailableError
from marless.rpc.client import Peer
from marless.rpc.param_store import LATEST, ParamStore, PolicyWrite
from marless.rpc.security import Security
from tests.faults.register import UNKNOWN, Acquire, Operation, ReadEpoch, ReadHead, ReadVersion, Write

JOB, POLICY = "job", "p"
PADDING_BYTES = 200
_HEAD = re.compile(r"is at version (\d+)")
_EPOCH = re.compile(r"epoch (\d+) has begun")


@dataclass
class Recording:
    """What all clients of one register saw."""

    operations: list[Operation] = field(default_factory=list)
    calls: int = 0
    """That have ended, answered or not."""
    called: Callable[[], None] = lambda: None
    """Called after each."""
    epoch: int = 0
    """Newest that anybody was given: what a careful writer uses."""
    unanswered: int = 0

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)
        self.unanswered += operation.end == UNKNOWN

    def count(self) -> None:
        self.calls += 1
        self.called()


class Client:
    """One client; it gives up on an answer after `patience_s` and then does not know what came of its call."""

    def __init__(self, number: int, address: str, recording: Recording, seed: int, *, patience_s: float) -> None:
        self._number = number
        self._peer = Peer(address, Security())
        self._store = ParamStore(self._peer, patience_s=patience_s)
        self._recording = recording
        self._rng = random.Random(f"{seed}/{number}")
        self._head = 0
        self._epoch = 0
        self._serial = 0

    async def close(self) -> None:
        await self._peer.close()

    async def run(self, operations: int) -> None:
        """Do so many random operations, one after another."""
        kinds = (self.write, self.read_head, self.read_version, self.listing, self.acquire)
        for _ in range(operations):
            [kind] = self._rng.choices(kinds, weights=(50, 30, 10, 7, 3))
            await kind()
            self._recording.count()

    async def write(self) -> None:
        """Publish on what this client takes for the head, most often with the newest epoch."""
        self._serial += 1
        content = f"{self._number}/{self._serial}"
        if self._rng.random() < 0.8:
            self._epoch = self._recording.epoch
        asked: dict[str, Any] = {"content": content, "expected": self._head, "epoch": self._epoch}
        blob = content.ljust(PADDING_BYTES).encode()
        start = time.monotonic()
        try:
            versions = await self._store.publish(
                JOB, self._epoch, 0, [PolicyWrite(POLICY, self._head, content, {"acting": blob})]
            )
        except ConflictError as error:
            self._head = _number(_HEAD, error)
            self._note(Write(**self._when(start), **asked, conflict=self._head))
        except FencedError as error:
            self._note(Write(**self._when(start), **asked, fenced=_number(_EPOCH, error)))
        except UnavailableError:
            self._note(Write(client=self._number, start=start, end=UNKNOWN, **asked))
        else:
            self._head = versions[POLICY]
            self._note(Write(**self._when(start), **asked, version=self._head))

    async def read_head(self) -> None:
        start = time.monotonic()
        try:
            stored = (await self._store.get(JOB, {POLICY: LATEST}, ["acting"]))[POLICY]
        except NotFoundError:
            self._note(ReadHead(**self._when(start), version=0, content=""))
        except UnavailableError:
            return
        else:
            self._head = stored.version
            self._note(ReadHead(**self._when(start), version=stored.version, content=_content(stored.blobs)))

    async def read_version(self) -> None:
        if self._head:
            await self.read(self._rng.randint(1, self._head))

    async def read(self, version: int) -> None:
        """Read one version that exists."""
        start = time.monotonic()
        try:
            content = _content((await self._store.get(JOB, {POLICY: version}, ["acting"]))[POLICY].blobs)
        except NotFoundError:
            content = ""
        except UnavailableError:
            return
        self._note(ReadVersion(**self._when(start), version=version, content=content))

    async def listing(self) -> int:
        """Read head and epoch, each as of some moment; returns the head, -1 without an answer."""
        start = time.monotonic()
        try:
            listing = await self._store.list(JOB)
        except UnavailableError:
            return -1
        head = listing.policies[POLICY].head.version if listing.policies else 0
        when = self._when(start)
        self._note(ReadHead(**when, version=head))
        self._note(ReadEpoch(**when, epoch=listing.epoch))
        return head

    async def acquire(self) -> None:
        self._serial += 1
        start = time.monotonic()
        try:
            epoch = await self._store.acquire_epoch(JOB, f"{self._number}/{self._serial}")
        except UnavailableError:
            self._note(Acquire(client=self._number, start=start, end=UNKNOWN))
        else:
            self._recording.epoch = max(self._recording.epoch, epoch)
            self._note(Acquire(**self._when(start), epoch=epoch))

    def _when(self, start: float) -> dict[str, Any]:  # Any: keyword arguments of several types
        return {"client": self._number, "start": start, "end": time.monotonic()}

    def _note(self, operation: Operation) -> None:
        self._recording.add(operation)


async def load(clients: Sequence[Client], operations: int) -> None:
    """Have the clients do so many operations in all, side by side."""
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(operations // len(clients)))


async def read_everything(clients: Sequence[Client]) -> int:
    """End a recording: read every version that there is, and the epoch; returns the number of versions."""
    head = await clients[0].listing()
    assert head >= 0, "the store is not back"

    async def some(client: Client, first: int) -> None:
        for version in range(first, head + 1, len(clients)):
            await client.read(version)

    async with asyncio.TaskGroup() as group:
        for first, client in enumerate(clients, 1):
            group.create_task(some(client, first))
    return head


def _content(blobs: Any) -> str:  # Any: a mapping of views
    return bytes(blobs["acting"]).decode().rstrip()


def _number(pattern: re.Pattern[str], error: Exception) -> int:
    found = pattern.search(str(error))
    assert found, error
    return int(found[1])
