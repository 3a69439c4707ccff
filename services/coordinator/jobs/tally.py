"""The coordinator's metrics for Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from marless.record import RoundRecord
from marless.rpc.metrics import counter, gauge

if TYPE_CHECKING:
    from services.coordinator.jobs.jobs import Jobs

EXECUTED = ("actor", "evaluation", "learner")
"""Functions that are executions of workers; every other one runs inside a learner."""
STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")


class Tally:
    """Counts over the rounds that this process has recorded.

    Invocations are executions of workers: actors, evaluations, learners. Functions that run inside learners
    (post-processing, critics, mixers, policies, measurements) are counted separately, because their time is part of
    the learners' time.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.env_steps = 0
        self.invocations: Counter[str] = Counter()
        """By function, as are the seconds below."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Wall-clock seconds from start to end."""
        self.vcpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.inner: Counter[str] = Counter()
        """Functions that ran inside learners, by function, as are their vCPU seconds."""
        self.inner_vcpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.repeated = 0
        """Invocations that needed more than one attempt."""

    def add(self, record: RoundRecord, *, after_env_steps: int) -> None:
        """Count a round of a job that had sampled `after_env_steps` env steps before it."""
        self.rounds += 1
        self.env_steps += max(0, record.env_steps - after_env_steps)
        for each in record.invocations:
            if each.function in EXECUTED:
                self.invocations[each.function] += 1
                self.seconds[each.function] += max(each.end_s - each.start_s, 0.0)
                self.vcpu_seconds[each.function] += each.vcpu_s
                self.repeated += each.attempt > 1
            else:
                self.inner[each.function] += 1
                self.inner_vcpu_seconds[each.function] += each.vcpu_s


def figures(jobs: Jobs) -> list[Metric]:
    """All metrics: jobs by state, rounds, env steps, and the functions that ran."""
    tally, states = jobs.tally, jobs.states()
    return [
        gauge("jobs", "Jobs of the runs directory.", {state: states[state] for state in STATES}, by="state"),
        gauge("jobs_in_trouble", "Jobs that wait for a service, or try a round again.", jobs.in_trouble),
        counter("rounds", "Rounds recorded.", tally.rounds),
        counter("env_steps", "Env steps sampled for training (all agents act once in one copy).", tally.env_steps),
        *_functions(tally),
    ]


def _functions(tally: Tally) -> list[Metric]:
    return [
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
