"""What Prometheus is told of the coordinator."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric

from marless.record import RoundRecord
from marless.rpc.metrics import counter, gauge

if TYPE_CHECKING:
    from services.coordinator.jobs import Jobs

EXECUTED = ("actor", "evaluation", "learner")
"""Functions that are executions of workers; every other one runs inside a learner."""
STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")


class Tally:
    """What the rounds came to that this coordinator recorded.

    Invocations are executions of workers: actors, evaluations, learners. What ran inside learners (post-processing,
    critics, mixers, policies, measurements) is counted apart, as it is a part of them.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.env_steps = 0
        self.invocations: Counter[str] = Counter()
        """By function; so are the seconds."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """From start to end."""
        self.vcpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.inner: Counter[str] = Counter()
        """Inside learners, by function; so are the vCPU seconds."""
        self.inner_vcpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.repeated = 0
        """Invocations that needed another attempt."""

    def add(self, record: RoundRecord, *, after_env_steps: int) -> None:
        """One more round, of a job that had sampled so many env steps before."""
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
    """Jobs, rounds, and the functions that ran for them."""
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
