"""The parameter store's metrics for Prometheus. Publishes and conflicts are counted with the RPCs, by status code."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric

from marless.rpc.metrics import counter, gauge
from services.param_store.redis_server import Provided
from services.param_store.uploads import BlobUploads


def figures(provided: Provided, uploads: BlobUploads) -> list[Metric]:
    """All metrics: restarts of Redis, and bytes of publishes in progress."""
    return [
        counter("redis_restarts", "How often a Redis of our own was started again.", provided.restarts()),
        gauge("publish_bytes", "Bytes that publishes in progress hold.", uploads.held_bytes),
    ]
