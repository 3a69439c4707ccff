"""The coordinator's metrics for Prometheus."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric

from marless.rpc.metrics import counter, gauge
from services.coordinator.jobs.jobs import Jobs
from services.coordinator.jobs.view import Tally

STATES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")


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
