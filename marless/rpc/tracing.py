"""Spans of a job's trace, and which of them is the present one; across processes, as W3C Trace Context names it.

A trace is a job's way from its acceptance, or from the request that resumed it, to its end: job → round → rollout,
update and evaluation → invocation → what it read and published. The ids of the job and its rounds follow from what they
are of, and who does the work tells each of the other spans. So a coordinator that goes on after a kill continues the
same trace, in which the phase that was interrupted keeps its place.

This module does not import OpenTelemetry, see `otlp`. Without a tracer, all that it does is to read a context variable.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Protocol

TRACE_KEY = "traceparent"
NAME_KEY = "tracestate"
"""Both are keys of gRPC metadata."""
MOST_ROUNDS = 1024
"""Rounds of one job that are begun and not recorded, of which the start is remembered."""
_NAME = re.compile(r"marless=([a-z]{1,16})")
_HEADER = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
Attributes = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, kw_only=True)
class TracedSpan:
    """A span that has ended. Ids are hexadecimal, 32 digits of a trace and 16 of a span."""

    name: str
    trace: str
    span: str
    parent: str
    """"" for the root."""
    start_s: float
    end_s: float
    """Both are Unix seconds."""
    attributes: Attributes
    error: str = ""
    """Why it failed; "" if it did not."""
    serves: bool = False
    """True for the side of a call that serves it."""


class Tracer(Protocol):
    """What takes the spans of a process."""

    @property
    def dropped(self) -> int:
        """Spans that were not sent: the queue was full, or the collector did not take them."""

    def emit(self, span: TracedSpan) -> None:
        """Take a span that has ended. Never blocks or raises; what does not fit into memory is dropped, and counted."""


@dataclass(frozen=True, kw_only=True)
class TraceScope:
    """The present span. Its process emits spans if it has a tracer, and else only tells others of the present one."""

    tracer: Tracer | None
    trace: str = ""
    """"" outside of a trace."""
    span: str = ""
    calls: str = ""
    """How those who serve calls name their spans; "" for the method."""
    rounds: dict[int, float] = field(default_factory=dict)
    """Rounds of the job that are begun and not recorded, with their starts in Unix seconds."""

    def of_job(self, job: str, accepted_s: float, request: str) -> TraceScope:
        """The scope of a job's trace, from when it was accepted, or from the request that resumed it after an end."""
        trace = _digest(job, accepted_s, request)
        return replace(self, trace=trace[:32], span=_digest(trace, "job")[:16], rounds={})

    def id_of(self, *of: object) -> str:
        """The id of this span in the trace."""
        return _digest(self.trace, *of)[:16]

    def emit(self, span: TracedSpan) -> None:
        """Emit a span if this process has a tracer."""
        if self.tracer:
            self.tracer.emit(span)


_scope: ContextVar[TraceScope | None] = ContextVar("marless-trace", default=None)


def present() -> TraceScope | None:
    """The present scope; None if this process traces nothing, and was called by none that does."""
    return _scope.get()


def metadata() -> tuple[tuple[str, str], ...]:
    """What gRPC calls carry of the present span; empty without one."""
    scope = _scope.get()
    if scope is None or not scope.trace:
        return ()
    parent = (TRACE_KEY, header(scope))
    return (parent, (NAME_KEY, f"marless={scope.calls}")) if scope.calls else (parent,)


def header(scope: TraceScope) -> str:
    """The present span as `traceparent`."""
    return f"00-{scope.trace}-{scope.span}-01"


def scope_of(text: str, tracer: Tracer | None) -> TraceScope | None:
    """The scope that a `traceparent` names; None for text that is none."""
    found = _HEADER.fullmatch(text)
    return TraceScope(tracer=tracer, trace=found[1], span=found[2]) if found else None


def called(text: str) -> str:
    """The name that a `tracestate` gives to the span of its call; "" if it gives none."""
    found = _NAME.fullmatch(text)
    return found[1] if found else ""


@contextmanager
def within(scope: TraceScope | None) -> Iterator[None]:
    """Make a scope the present one; tasks that are created meanwhile keep it."""
    before = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(before)


@contextmanager
def traced(name: str, attributes: Attributes, *, serves: bool = False) -> Iterator[dict[str, str | int | float | bool]]:
    """A span below the present one; what the caller adds to the attributes until its end is told, too."""
    found, scope = dict(attributes), _scope.get()
    if scope is None or not scope.trace or scope.tracer is None:
        yield found
        return
    inner, start_s, error = replace(scope, span=secrets.token_hex(8), calls=""), time.time(), ""
    try:
        with within(inner):
            yield found
    except BaseException as failed:
        error = f"{type(failed).__name__}: {failed}"
        raise
    finally:
        scope.emit(
            TracedSpan(
                name=name,
                trace=scope.trace,
                span=inner.span,
                parent=scope.span,
                start_s=start_s,
                end_s=time.time(),
                attributes=found,
                error=error,
                serves=serves,
            )
        )


@contextmanager
def phase(name: str, round_: int | None, *, recorded: bool = False) -> Iterator[None]:
    """Calls within are this phase of a round of the present job, or of the job itself, and get its name.

    `recorded` says that the round may have its record, and so its span, already.

    Whoever serves the call emits the phase's span. So it is told once even if the coordinator is killed meanwhile.
    """
    scope = _scope.get()
    if scope is None or not scope.trace:
        yield
        return
    if round_ is not None and not recorded and len(scope.rounds) < MOST_ROUNDS:
        scope.rounds.setdefault(round_, time.time())
    parent = scope.span if round_ is None else scope.id_of("round", round_)
    with within(replace(scope, span=parent, calls=name)):
        yield


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
