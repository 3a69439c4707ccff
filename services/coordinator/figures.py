"""What Prometheus is told of the coordinator."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from marless.record import RoundRecord
from marless.rpc.metrics import counter, gauge

if TYPE_CHECKING:
    from services.coordinator.jobs import Jobs

STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")


class Tally:
    """What the rounds came to that this coordinator recorded."""

    def __init__(self) -> None:
        self.rounds = 0
        self.env_steps = 0
        self.invocations: Counter[str] = Counter()
        """By function; so are the seconds."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """From start to end; 0 for a function that ran inside another one."""
        self.vcpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.repeated = 0
        """Invocations that needed another attempt."""

    def add(self, record: RoundRecord, *, after_env_steps: int) -> None:
        """One more round, of a job that had sampled so many env steps before."""
        self.rounds += 1
        self.env_steps += max(0, record.env_steps - after_env_steps)
        for each in record.invocations:
            self.invocations[each.function] += 1
            self.seconds[each.function] += max(each.end_s - each.start_s, 0.0)
            self.vcpu_seconds[each.function] += each.vcpu_s
            self.repeated += each.attempt > 1


def figures(jobs: Jobs) -> list[Metric]:
    """Jobs, rounds, and the functions that ran for them."""
    tally, states = jobs.tally, jobs.states()
    return [
        gauge("jobs", "Jobs of the runs directory.", {state: states[state] for state in STATES}, by="state"),
        gauge("jobs_in_trouble", "Jobs that wait for a service, or try a round again.", jobs.in_trouble),
        counter("rounds", "Rounds recorded.", tally.rounds),
        counter("env_steps", "Env steps sampled for training (all agents act once in one copy).", tally.env_steps),
        counter("invocations", "Invocations of recorded rounds.", tally.invocations, by="function"),
        counter("invocation_seconds", "Their seconds from start to end.", tally.seconds, by="function"),
        counter("invocation_vcpu_seconds", "The vCPU seconds they used.", tally.vcpu_seconds, by="function"),
        counter("invocations_repeated", "Those that needed another attempt.", tally.repeated),
    ]
