"""What operators see of the coordinator: readiness (peers serve, the runs directory can be written) and metrics."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.metrics_core import Metric

from marless.core.log import structlog
from marless.rpc.client import Peer
from marless.rpc.health import is_serving
from marless.rpc.metrics import counter, gauge
from marless.services.coordinator.jobs.jobs import Jobs

PERIOD_S = 1.0
EAGER_PERIOD_S = 0.2
"""The period while something is missing, as at the start."""
_PROBE_BYTES = 4096
_log = structlog.get_logger("coordinator")


class Readiness:
    """Checks periodically and answers from the last check; an async context manager."""

    def __init__(self, peers: Mapping[str, Peer], runs: Path) -> None:
        self.peers = peers
        self._runs = runs
        self.missing: tuple[str, ...] = (*peers, "runs")
        """The peers that did not serve at the last check, and "runs" if the runs directory could not be written."""
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Readiness:
        await self._look()
        self._looking = asyncio.create_task(self._keep_looking())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def ready(self) -> bool:
        """True if all peers served and the runs directory was writable at the last check."""
        return not self.missing

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(EAGER_PERIOD_S if self.missing else PERIOD_S)
            await self._look()

    async def _look(self) -> None:
        writable = asyncio.to_thread(_is_writable, self._runs)
        *answers, ours = await asyncio.gather(*map(is_serving, self.peers.values()), writable)
        missing = tuple(name for name, there in zip((*self.peers, "runs"), (*answers, ours), strict=True) if not there)
        if missing != self.missing:
            _log.info("coordinator.readiness", missing=missing)
        self.missing = missing


def _is_writable(directory: Path) -> bool:
    """True if a small temporary file can be written, which is removed at once."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            # An empty file can be made on a full disk, too.
            file.write(b"\0" * _PROBE_BYTES)
    except OSError:
        return False
    return True


STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")


def figures(jobs: Jobs) -> list[Metric]:
    """All metrics: jobs by state, rounds, env steps, and the functions that ran."""
    tally, states = jobs.tally, jobs.index.states()
    return [
        gauge("jobs", "Jobs of the runs directory.", {state: states[state] for state in STATES}, by="state"),
        gauge("jobs_in_trouble", "Jobs that wait for a service, or try a round again.", jobs.queue.in_trouble),
        counter("rounds", "Rounds recorded.", tally.rounds),
        counter("env_steps", "Env steps sampled for training (all agents act once in one copy).", tally.env_steps),
        counter("broken_episodes", "Episodes that a fault of the environment has ended.", tally.broken_episodes),
        counter("invocations", "Executions of workers in recorded rounds.", tally.invocations, by="function"),
        counter("invocation_seconds", "Their seconds from start to end.", tally.seconds, by="function"),
        counter("invocation_vcpu_seconds", "The vCPU seconds they used.", tally.vcpu_seconds, by="function"),
        counter("invocations_repeated", "Those that needed another attempt.", tally.repeated),
        counter("learner_functions", "Functions that ran inside learners.", tally.inner, by="function"),
        counter(
            "learner_function_vcpu_seconds",
            "The vCPU seconds they used; a part of those of the learners.",
            tally.inner_vcpu_seconds,
            by="function",
        ),
    ]
