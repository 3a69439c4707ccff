"""What may serve an actor worker near by: caches of the param_store, and a relay on its host, which passes on tasks,
results and small trajectories, those of many workers at a time.

Both are optimisations. Where no cache answers, a worker reads from the store; where its relay does not answer, it dials
its pools itself, and what a relay does not deliver is sent again to the learner pool, which applies each upload once.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.core.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    MarlessError,
    NotFoundError,
    OverloadedError,
    StaleError,
    UnreachableError,
)
from marless.core.log import structlog
from marless.rpc.client import Peer
from marless.rpc.errors import by_name
from marless.rpc.param_store import ParamStore, StoredVersion
from marless.rpc.security import Security
from marless.rpc.v1 import learner_pool_pb2
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub

CACHE_S = 20.0
"""Seconds that a read from a cache may take; a cache whose process hangs is given up sooner, by its connection."""
REST_S = 10.0
"""Seconds for which a cache or relay that has failed is not used."""
_log = structlog.get_logger("marless.nearby")
SMALL_BYTES = 2**16
"""Largest trajectory that goes through a relay; of larger ones, their bytes take longer than their call."""
LOOK_S = 20.0
"""Seconds in which a relay must say that it serves; one that is not there is known at once."""
UPLOAD_S = 20.0
_FINAL = (StaleError, FencedError, AlreadyExistsError)


class Caches:
    """Reads from one of several caches, or from the store. Whatever a cache does wrong, the store's answer counts."""

    def __init__(self, store: ParamStore, addresses: Sequence[str], security: Security, reader: str) -> None:
        """`reader` is the name of this reader, by which readers spread over the caches."""
        self._store = store
        first = zlib.crc32(reader.encode()) % max(len(addresses), 1)
        self._caches = [_Cache(address, security) for address in (*addresses[first:], *addresses[:first])]

    async def get(
        self, job: str, versions: Mapping[str, int], parts: Sequence[str], *, epoch: int
    ) -> dict[str, StoredVersion]:
        """Get versions as `ParamStore.get` does."""
        now_s = time.monotonic()
        for cache in (each for each in self._caches if each.rests_until_s <= now_s):
            try:
                return await cache.store.get(job, versions, parts, epoch=epoch)
            except MarlessError as trouble:
                cache.failed(trouble)
        return await self._store.get(job, versions, parts, epoch=epoch)

    async def close(self) -> None:
        """Close all connections to caches."""
        for cache in self._caches:
            await cache.peer.close()


class _Cache:
    def __init__(self, address: str, security: Security) -> None:
        self.peer = Peer(address, security.towards(address), f"cache at {address}")
        # Without retries: the next cache, or the store itself, answers sooner.
        self.store = ParamStore(self.peer, patience_s=0.0, transfer_s=CACHE_S)
        self.rests_until_s = 0.0

    def failed(self, trouble: MarlessError) -> None:
        """Ask it no more for a while, unless it has only passed on that there is no such version, or has no room."""
        if isinstance(trouble, NotFoundError | OverloadedError):
            return
        self.rests_until_s = time.monotonic() + REST_S
        _log.warning("cache.unusable", cache=self.peer.address, reason=str(trouble), reads="from the param_store")


class Relay:
    """A worker's connection to the relay of its host."""

    def __init__(self, address: str, security: Security) -> None:
        self.peer = Peer(address, security.towards(address), f"relay at {address}")
        self._stub = LearnerPoolServiceStub(self.peer.channel)
        self._rests_until_s = 0.0

    async def serves(self) -> bool:
        """True if it answers, and reaches the pool of actors."""
        check = health_pb2_grpc.HealthStub(self.peer.channel).Check
        try:
            answer = await self.peer.call(check, health_pb2.HealthCheckRequest(), timeout_s=LOOK_S)
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return True
            self._failed(UnreachableError("it does not reach its actor_pool"))
        except MarlessError as trouble:
            self._failed(trouble)
        return False

    async def upload(self, header: Message, buffers: Iterable[memoryview]) -> bool:
        """Upload a small trajectory; returns False if it is to be sent to the learner pool instead.

        Raises StaleError, FencedError or AlreadyExistsError if the learner pool does not want it.
        """
        if time.monotonic() < self._rests_until_s:
            return False
        one = learner_pool_pb2.SmallUpload(header=header.SerializeToString(), data=b"".join(buffers))
        request = learner_pool_pb2.UploadManyRequest(uploads=[one])
        try:
            answer = await self.peer.call(self._stub.UploadMany, request, timeout_s=UPLOAD_S)
            if len(answer.outcomes) != 1:
                raise CorruptError(f"{len(answer.outcomes)} outcomes of one upload")
        except MarlessError as trouble:
            self._failed(trouble)
            return False
        if not (outcome := answer.outcomes[0]).error_code:
            return True
        refusal = by_name(outcome.error_code, outcome.error)
        # Any other refusal, such as for want of room, is left to the pool's own call: that one can wait for room, and
        # that of many uploads cannot.
        if isinstance(refusal, _FINAL):
            raise refusal
        return False

    def _failed(self, trouble: MarlessError) -> None:
        self._rests_until_s = time.monotonic() + REST_S
        _log.warning("relay.unusable", relay=self.peer.address, reason=str(trouble), instead="the pools themselves")

    async def close(self) -> None:
        """Close the connection."""
        await self.peer.close()
