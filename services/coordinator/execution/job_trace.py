"""The spans of a job and of its rounds; those of a round's phases are told by the pools."""

from __future__ import annotations

import time

from marless.jobs.record import RoundRecord
from marless.rpc.tracing import Attributes, TracedSpan, TraceScope, present
from marless.services.coordinator.state.status import JobStatus


class JobTrace:
    """The trace of a job, if this coordinator traces."""

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
