"""Counts what recorded rounds have sampled and run, for metrics."""

from __future__ import annotations

from collections import Counter, defaultdict

from marless.jobs.record import RoundRecord

EXECUTED = ("actor", "evaluation", "learner")
"""Functions that are executions of workers; every other one runs inside a learner."""


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
