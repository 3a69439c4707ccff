"""A host of `bench.crowd` in one process: its relay, its workers, and what they read of the parameter store.

The pools and the store are called as by a relay and a cache of a host, message by message. Between the relay and the
workers there is no gRPC, so that workers take as little as possible of the cores that they share with the services.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from google.protobuf.message import Message

from bench.harness import BenchError
from marless.learning.nets.acting import ActingState
from marless.learning.nets.serial import decode_acting
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from marless.rpc.v1 import actor_pool_pb2, common_pb2, learner_pool_pb2
from marless.services.relay.servicer import RelayedUploads, Workers

_KEPT = 8
"""Rounds whose weights are kept."""
Reads = OrderedDict[tuple[str, int, int], asyncio.Task[dict[str, ActingState]]]
"""By job, round and epoch."""


class Host:
    """What the workers of a process share."""

    def __init__(self, security: Security, *, actor_pool: str, learner_pool: str, param_store: str) -> None:
        self.pool = Peer(actor_pool, security, "actor_pool")
        self.store = ParamStore(Peer(param_store, security, "param_store"))
        self._workers = Workers(self.pool)
        self._uploads = RelayedUploads(Peer(learner_pool, security, "learner_pool"))
        self._uploads.start()
        self._reads: Reads = OrderedDict()

    def work(self, **_metadata: object) -> Any:  # Any: as the stub of a stream
        """As the stub's `Work`: a worker's stream to the relay."""
        return _Stream(self._workers)

    async def upload(self, header: Message, buffers: Iterable[memoryview]) -> bool:
        """As `Relay.upload`; raises BenchError if the learner pool does not take it."""
        one = learner_pool_pb2.SmallUpload(header=header.SerializeToString(), data=b"".join(buffers))
        [outcome] = await self._uploads.deliver([one])
        if outcome.error_code:
            raise BenchError(f"an upload was refused: {outcome.error}")
        return True

    async def acting(self, task: actor_pool_pb2.RolloutTask) -> dict[str, ActingState]:
        """The weights of each agent's policy for a task; those of a round are read and decoded once."""
        key = (task.job, task.round, task.settings.epoch)
        if key not in self._reads:
            self._reads[key] = asyncio.create_task(self._read(task))
            while len(self._reads) > _KEPT:
                self._reads.popitem(last=False)
        read = self._reads[key]
        return read.result() if read.done() else await asyncio.shield(read)

    async def _read(self, task: actor_pool_pb2.RolloutTask) -> dict[str, ActingState]:
        sources = {group.source.policy: group.source.version for group in task.groups}
        got = await self.store.get(task.job, sources, ("acting",), epoch=task.settings.epoch)
        states = {policy: decode_acting(bytes(stored.blobs["acting"])) for policy, stored in got.items()}
        return {agent: states[group.source.policy] for group in task.groups for agent in group.agents}


class _Stream:
    """A worker's side of a stream to a relay in its process."""

    def __init__(self, relay: Workers) -> None:
        self._said: asyncio.Queue[common_pb2.WorkerMessage] = asyncio.Queue()
        self._told: asyncio.Queue[Any] = asyncio.Queue()  # Any: messages, then EOF
        self._serving = asyncio.create_task(relay.attach(self._messages(), self._told.put))
        self._serving.add_done_callback(lambda _: self._told.put_nowait(grpc.aio.EOF))

    async def _messages(self) -> AsyncIterator[common_pb2.WorkerMessage]:
        while True:
            yield await self._said.get()

    async def write(self, message: common_pb2.WorkerMessage) -> None:
        await self._said.put(message)

    async def read(self) -> Any:  # Any: a message or EOF
        return await self._told.get()

    async def done_writing(self) -> None:
        self._serving.cancel()

    def cancel(self) -> None:
        self._serving.cancel()
