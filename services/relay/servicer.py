"""The gRPC servicer of a relay: `Work` of the actor pool and `UploadMany` of the learner pool; no other method.

Small trajectories on their way to the learner pool, many in one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from prometheus_client.metrics_core import Metric

from marless.core.errors import CorruptError, MarlessError, OverloadedError, TooLargeError
from marless.rpc.batcher import Batcher
from marless.rpc.client import Peer
from marless.rpc.metrics import counter, gauge
from marless.rpc.relay import SMALL_BYTES, UPLOAD_S
from marless.rpc.server import register_bulk
from marless.rpc.v1 import common_pb2, learner_pool_pb2
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub
from services.relay.workers import Workers

Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods


class RelayServicer:
    """The methods that a relay serves."""

    def __init__(self, workers: Workers, uploads: RelayedUploads) -> None:
        self._workers = workers
        self._uploads = uploads

    def register(self, server: grpc.aio.Server) -> None:
        """Add this servicer to a server."""
        work = grpc.stream_stream_rpc_method_handler(
            self._work, common_pb2.WorkerMessage.FromString, common_pb2.PoolMessage.SerializeToString
        )
        upload = grpc.unary_unary_rpc_method_handler(
            self._upload,
            learner_pool_pb2.UploadManyRequest.FromString,
            learner_pool_pb2.UploadManyResponse.SerializeToString,
        )
        register_bulk(server, "ActorPoolService", {"Work": work})
        register_bulk(server, "LearnerPoolService", {"UploadMany": upload})

    def figures(self) -> list[Metric]:
        """The relay's metrics for Prometheus."""
        return [
            gauge("relay_workers", "Workers that are connected through the relay.", self._workers.connected),
            counter("relay_uploads", "Small trajectories that were passed on.", self._uploads.passed_on),
            counter("relay_upload_calls", "Calls in which they were passed on.", self._uploads.calls),
        ]

    async def _work(self, messages: AsyncIterator[common_pb2.WorkerMessage], context: Context) -> None:
        """Serve one worker's stream."""
        await self._workers.attach(messages, context.write)

    async def _upload(
        self, request: learner_pool_pb2.UploadManyRequest, _context: Context
    ) -> learner_pool_pb2.UploadManyResponse:
        """Pass uploads on, and answer as the learner pool does."""
        return learner_pool_pb2.UploadManyResponse(outcomes=await self._uploads.deliver(request.uploads))


MOST_WAITING = 4096
"""Uploads that wait to be sent; further ones are refused, and their workers send them to the pool themselves."""


@dataclass(frozen=True, eq=False)
class _Upload:
    sent: learner_pool_pb2.SmallUpload
    outcome: asyncio.Future[learner_pool_pb2.UploadOutcome]


class RelayedUploads:
    """Sends uploads on, and has each caller wait for the learner pool's own answer."""

    def __init__(self, pool: Peer) -> None:
        self._pool = pool
        self._stub = LearnerPoolServiceStub(pool.channel)
        self._waiting: Batcher[_Upload] = Batcher(self._send, size=lambda upload: len(upload.sent.data))
        self._sending: asyncio.Task[None] | None = None
        self.passed_on = self.calls = 0
        """Uploads that were answered, and calls that it took."""

    def start(self) -> None:
        """Begin to send."""
        self._sending = asyncio.create_task(self._waiting.run())

    async def stop(self) -> None:
        """Send no more."""
        if self._sending:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def deliver(self, uploads: Sequence[learner_pool_pb2.SmallUpload]) -> list[learner_pool_pb2.UploadOutcome]:
        """Wait for the outcomes of uploads.

        Raises TooLargeError for one that is not small, OverloadedError if too many wait, and the errors of the call.
        """
        if any(len(each.data) > SMALL_BYTES for each in uploads):
            raise TooLargeError(f"a relay takes trajectories of {SMALL_BYTES:,} bytes; send others to the learner pool")
        if len(self._waiting) + len(uploads) > MOST_WAITING:
            raise OverloadedError(f"no room in the relay: {len(self._waiting)} uploads wait already")
        loop = asyncio.get_running_loop()
        waiting = [_Upload(each, loop.create_future()) for each in uploads]
        for each in waiting:
            self._waiting.add(each)
        return [await each.outcome for each in waiting]

    async def _send(self, some: Sequence[_Upload]) -> None:
        # A worker that does not wait any longer sends its own to the learner pool itself.
        wanted = [each for each in some if not each.outcome.cancelled()]
        request = learner_pool_pb2.UploadManyRequest(uploads=[each.sent for each in wanted])
        try:
            answer = await self._pool.call(self._stub.UploadMany, request, timeout_s=UPLOAD_S)
            if len(answer.outcomes) != len(wanted):
                raise CorruptError(f"{len(answer.outcomes)} outcomes of {len(wanted)} uploads")
        except MarlessError as error:
            for each in wanted:
                if not each.outcome.done():
                    each.outcome.set_exception(error)
            return
        self.calls, self.passed_on = self.calls + 1, self.passed_on + len(wanted)
        for each, outcome in zip(wanted, answer.outcomes, strict=True):
            if not each.outcome.done():
                each.outcome.set_result(outcome)
