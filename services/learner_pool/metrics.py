"""The learner pool's metrics for Prometheus."""

from __future__ import annotations

from dataclasses import asdict

from prometheus_client.metrics_core import Metric

from marless.fleet import metrics as workers
from marless.fleet.dispatch import Dispatcher
from marless.rpc.metrics import counter, gauge
from services.learner_pool.replays import Replays
from services.learner_pool.trajectory_buffer import TrajectoryBuffer


def figures(dispatcher: Dispatcher, buffer: TrajectoryBuffer, replays: Replays) -> list[Metric]:
    """All metrics: workers, uploads, bytes held, and samples of replay buffers."""
    return [
        *workers.figures(dispatcher),
        counter("uploads", "Trajectories, by what became of them.", asdict(buffer.counts), by="outcome"),
        gauge("intake_bytes", "Bytes of trajectories that wait for their update.", buffer.held_bytes),
        gauge("replay_bytes", "Bytes of files that learners remember past rounds in.", replays.held_bytes),
        counter("replay_samples", "Env steps of replays, by what became of them.", replays.samples, by="outcome"),
    ]
