"""Prometheus metrics of a pool's workers and tasks."""

from __future__ import annotations

from collections import Counter

from prometheus_client.metrics_core import Metric

from marless.fleet.dispatch import Dispatcher
from marless.rpc.metrics import counter, gauge


def figures(dispatcher: Dispatcher) -> list[Metric]:
    """Connected workers, queued tasks, and finished attempts by outcome."""
    states = Counter("busy" if worker.busy else "idle" for worker in dispatcher.workers())
    attempts = {outcome: dispatcher.attempts[outcome] for outcome in ("done", "failed", "lost")}
    return [
        gauge("workers", "Connected workers.", {state: states[state] for state in ("busy", "idle")}, by="state"),
        gauge("tasks_queued", "Tasks that wait for a worker.", dispatcher.queued),
        counter("task_attempts", "Attempts at tasks, by how they ended.", attempts, by="outcome"),
    ]
