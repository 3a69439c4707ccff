"""Prometheus metrics of a pool's workers and tasks."""

from __future__ import annotations

from collections import Counter

from prometheus_client.metrics_core import Metric

from marless.fleet.dispatch import Dispatcher
from marless.rpc.metrics import counter, gauge


def figures(dispatcher: Dispatcher) -> list[Metric]:
    """Connected workers, queued tasks, finished attempts by outcome, machines, and how long workers took to start."""
    machines = dispatcher.machines

    def started(what: str) -> dict[str, float]:
        return {machines.launcher: machines.starts[what]}

    states = Counter("busy" if worker.busy else "idle" for worker in dispatcher.workers())
    attempts = {outcome: dispatcher.attempts[outcome] for outcome in ("done", "failed", "lost")}
    return [
        gauge("workers", "Connected workers.", {state: states[state] for state in ("busy", "idle")}, by="state"),
        gauge("tasks_queued", "Tasks that wait for a worker.", dispatcher.queued),
        counter("task_attempts", "Attempts at tasks, by how they ended.", attempts, by="outcome"),
        gauge("machines", "Machines of workers.", machines.present),
        counter("machine_seconds", "Seconds of machines, by what they did.", machines.seconds, by="activity"),
        counter("worker_starts", "Workers that were ordered and have had a task.", started("workers"), by="launcher"),
        counter(
            "worker_connect_seconds", "Their seconds from order to connection.", started("connect_s"), by="launcher"
        ),
        counter(
            "worker_first_task_seconds",
            meaning="Their seconds from order to first task.",
            values=started("first_task_s"),
            by="launcher",
        ),
    ]
