"""The gRPC servicer of a relay: `Work` of the actor pool and `UploadMany` of the learner pool; no other method."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from prometheus_client.metrics_core import Metric

from marless.rpc.metrics import counter, gauge
from marless.rpc.server import register_bulk
from marless.rpc.v1 import common_pb2, learner_pool_pb2
from services.relay.uploads import RelayedUploads
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
