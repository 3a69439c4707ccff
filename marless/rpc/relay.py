"""An actor worker's host may have a relay: it passes on tasks, results and small trajectories, those of many at a time.

A relay is an optimisation. A worker whose relay does not answer dials its pools itself, and what a relay does not
deliver is sent again to the learner pool, which applies each upload once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from marless.core.errors import (
    AlreadyExistsError,
    CorruptError,
    FencedError,
    MarlessError,
    StaleError,
    UnreachableError,
)
from marless.core.log import structlog
from marless.rpc.client import Peer
from marless.rpc.errors import by_name
from marless.rpc.security import Security
from marless.rpc.v1 import learner_pool_pb2
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub

SMALL_BYTES = 2**16
"""Largest trajectory that goes through a relay; of larger ones, their bytes take longer than their call."""
LOOK_S = 20.0
"""Seconds in which a relay must say that it serves; one that is not there is known at once."""
UPLOAD_S = 20.0
REST_S = 10.0
"""Seconds for which a relay that has failed is not used."""
_FINAL = (StaleError, FencedError, AlreadyExistsError)
_log = structlog.get_logger("marless.relays")


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
