"""Measures the duration of a job's rounds and the idle time between them, for its records, and tells the spans of both.

Training time, which `stop.wall_s` limits and the bill charges, is the sum of both over the recorded rounds (see
`RoundRecord.spent_s`). Interruptions are in neither: nothing of the job runs while it has no coordinator, waits for a
service that is down, or waits for room in the learner pool. Durations are measured with a monotonic clock, except
`since`, which is only shown to people.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from marless.core.stopwatch import Stopwatch
from marless.jobs.record import RoundRecord
from marless.rpc.tracing import Attributes, TracedSpan, TraceScope, present
from marless.services.coordinator.state.status import JobStatus


@dataclass(frozen=True)
class RoundTimes:
    """The start and duration of a round, and the idle time before it."""

    watch: Stopwatch
    """Runs since the start of the round's rollout, less an interruption after it."""
    idle_s: float | None
    """See `RoundRecord`."""


class Timing:
    """Measures the rounds of one job while one coordinator runs it."""

    def __init__(self) -> None:
        self._life = Stopwatch.start()
        self._round: RoundTimes | None = None
        self._begun = -1
        """The number of the round that began last."""
        self._rest: tuple[int, Stopwatch] | None = None
        """The number of the last recorded round, and the time since its end; None after an interruption."""

    def begin(self, round_: int) -> RoundTimes:
        """Start a round, unless it has begun: with the wait for its rollout, or else with its update."""
        if self._round is None or self._begun != round_:
            rest = self._rest[1] if self._rest and self._rest[0] + 1 == round_ else None
            self._round, self._begun = RoundTimes(Stopwatch.start(), rest.seconds if rest else None), round_
        return self._round

    def waited_s(self, round_: int) -> float:
        """Seconds that a round has taken so far; 0 if it has not begun."""
        return self._round.watch.seconds if self._round and self._begun == round_ else 0.0

    def present(self, rollout_s: float) -> RoundTimes:
        """The times of the present round, whose rollout it waited for `rollout_s`; an interruption is not counted."""
        self._round = times = self._round or RoundTimes(Stopwatch.start(rollout_s), None)
        return times

    def recorded(self, record: RoundRecord) -> None:
        """Note that the present round is recorded: idle time counts from its end."""
        # Idle time counts from the end that the record names, and to write the record took some time since.
        since_end_s = self._round.watch.seconds - record.took_s if self._round else 0.0
        self._round, self._rest = None, (record.round, Stopwatch.start(max(since_end_s, 0.0)))

    def interrupted(self) -> None:
        """Stop counting until the job continues, with a new round or with the update of the present one."""
        self._round = self._rest = None

    def since(self, accepted_s: float) -> float:
        """Seconds since `accepted_s`, the Unix time at which the job was accepted."""
        return max(self._life.started_s - accepted_s, 0.0) + self._life.seconds


class JobTrace:
    """The trace of a job, if this coordinator traces: its span and those of its rounds. Pools tell those of phases."""

    def __init__(self, status: JobStatus) -> None:
        process = present()
        self.scope: TraceScope | None = None
        """In which the job runs."""
        if process and process.tracer:
            self.scope = process.of_job(status.job, status.accepted_s, status.resume_request_id)
        self._start_s = time.time() if status.resume_request_id else status.accepted_s

    def recorded(self, record: RoundRecord) -> None:
        """Emit the span of a round, once it is recorded."""
        if self.scope:
            start_s = min(record.started_s, self.scope.rounds.pop(record.round, record.started_s))
            facts: Attributes = {"marless.env_steps": record.env_steps, "marless.actors": record.actors}
            if record.returns:
                facts = {**facts, "marless.return": record.returns.mean}
            self._round(record.round, start_s, max(record.ended_s, start_s), facts)

    def ended(self, status: JobStatus) -> None:
        """Emit the spans of rounds that are not recorded, and that of the job."""
        if self.scope:
            now_s = time.time()
            for number, start_s in self.scope.rounds.items():
                self._round(number, start_s, now_s, {}, error="not recorded")
            facts: Attributes = {
                "marless.job": status.job,
                "marless.state": status.state,
                "marless.resumes": status.resumes,
            }
            error = "" if status.state == "SUCCEEDED" else status.reason
            self._emit("job", self.scope.span, "", self._start_s, now_s, facts, error)

    def _round(self, number: int, start_s: float, end_s: float, facts: Attributes, error: str = "") -> None:
        assert self.scope is not None  # asked by who calls this
        span, parent = self.scope.id_of("round", number), self.scope.span
        self._emit("round", span, parent, start_s, end_s, {"marless.round": number, **facts}, error)

    def _emit(
        self, name: str, span: str, parent: str, start_s: float, end_s: float, facts: Attributes, error: str
    ) -> None:
        assert self.scope is not None  # asked by who calls this
        self.scope.emit(
            TracedSpan(
                name=name,
                trace=self.scope.trace,
                span=span,
                parent=parent,
                start_s=start_s,
                end_s=end_s,
                attributes=facts,
                error=error,
            )
        )
