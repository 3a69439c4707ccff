"""Spans: which one is present, what calls carry of it, and what becomes of spans that no collector takes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time

import pytest
from structlog.testing import capture_logs

from marless.rpc import otlp, tracing
from marless.rpc.otlp import OtlpTracer
from marless.rpc.tracing import (
    TracedSpan,
    TraceScope,
    called,
    header,
    metadata,
    phase,
    present,
    scope_of,
    traced,
    within,
)
from tests.otlp_collector import collecting, collecting_by_grpc

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Kept:
    def __init__(self) -> None:
        self.spans: list[TracedSpan] = []
        self.dropped = 0

    def emit(self, span: TracedSpan) -> None:
        self.spans.append(span)


def span(**changes: object) -> TracedSpan:
    given = {"name": "a", "trace": TRACE, "span": SPAN, "parent": "", "start_s": 1.0, "end_s": 2.5, "attributes": {}}
    return TracedSpan(**given | changes)


def test_outside_of_a_trace_calls_carry_nothing():
    assert (present(), metadata()) == (None, ())
    with phase("rollout", 3), traced("x", {}):
        assert (present(), metadata()) == (None, ())
    with within(TraceScope(tracer=Kept())), phase("rollout", 3):
        assert metadata() == ()


def test_a_header_is_that_of_w3c_trace_context():
    scope = scope_of(f"00-{TRACE}-{SPAN}-01", None)
    assert scope is not None and (scope.trace, scope.span) == (TRACE, SPAN)
    assert header(scope) == f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    "text",
    [
        *("", "00", f"01-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\n"),
        *(f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{SPAN}-01-more"),
    ],
)
def test_what_is_no_header_names_no_span(text):
    assert scope_of(text, None) is None


def test_a_callee_is_named_by_a_word_and_nothing_else():
    assert called("marless=rollout") == "rollout"
    assert [
        called(text) for text in ("", "rollout", "marless=", "marless=Ab", "marless=a,b=c", "marless=" + 17 * "a")
    ] == [""] * 6


def test_the_same_job_continues_its_trace_and_a_resumed_one_begins_another():
    process = TraceScope(tracer=Kept())
    first, again = (process.of_job("j", 5.0, "") for _ in range(2))
    assert (first.trace, first.span, first.id_of("round", 2)) == (again.trace, again.span, again.id_of("round", 2))
    others = [process.of_job("j", 5.0, "request"), process.of_job("k", 5.0, ""), process.of_job("j", 6.0, "")]
    assert len({first.trace, *(each.trace for each in others)}) == 4
    assert first.id_of("round", 2) != first.id_of("round", 3)
    assert (len(first.trace), len(first.span), len(first.id_of("round", 2))) == (32, 16, 16)


def test_a_phase_is_below_its_round_and_is_named_to_its_callee():
    job = TraceScope(tracer=Kept()).of_job("j", 5.0, "")
    with within(job):
        with phase("rollout", 2):
            assert dict(metadata()) == {
                "traceparent": f"00-{job.trace}-{job.id_of('round', 2)}-01",
                "tracestate": "marless=rollout",
            }
        with phase("evaluation", 1, recorded=True):
            pass
        with phase("gradient", None):
            assert dict(metadata())["traceparent"] == header(job)
    assert set(job.rounds) == {2}


def test_spans_are_below_the_present_one_and_failures_are_told():
    kept = Kept()
    parent = scope_of(f"00-{TRACE}-{SPAN}-01", kept)
    with within(parent), pytest.raises(ValueError), traced("outer", {"a": 1}, serves=True):
        with traced("inner", {}) as told:
            told["b"] = 2
        raise ValueError("no luck")
    inner, outer = kept.spans
    assert (outer.parent, outer.serves, outer.error, outer.attributes) == (SPAN, True, "ValueError: no luck", {"a": 1})
    assert (inner.parent, inner.error, inner.attributes) == (outer.span, "", {"b": 2})
    assert outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s


def until(condition) -> None:
    give_up_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.005)


@pytest.mark.parametrize(
    ("collector_of", "variables"),
    [
        (collecting, {}),
        (collecting, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}),
        (collecting_by_grpc, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}),
        (collecting_by_grpc, {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}),
    ],
)
def test_a_collector_gets_the_spans_as_they_are(monkeypatch, collector_of, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with collector_of() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
        with otlp.tracing("coordinator") as tracer:
            assert "OTEL_EXPORTER_OTLP_HEADERS" not in otlp.os.environ
            scope = present()
            assert scope is not None and scope.tracer is tracer
            tracer.emit(span(attributes={"n": 3, "text": "x", "yes": True, "half": 0.5}, serves=True))
            tracer.emit(span(name="b", span="1" * 16, parent=SPAN, error="no luck"))
        first, second = collector.spans
    assert present() is None
    assert (first.service, first.name, first.trace, first.span, first.parent) == ("coordinator", "a", TRACE, SPAN, "")
    assert (first.start_ns, first.end_ns, first.failed) == (1_000_000_000, 2_500_000_000, False)
    assert first.attributes == {"n": 3, "text": "x", "yes": True, "half": 0.5}
    assert (second.parent, second.failed) == (SPAN, True)
    assert collector.headers == ["secret"]
    assert tracer.dropped == 0


@pytest.fixture
def nobody() -> str:
    """An endpoint at which connections wait for ever."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_does_not_answer_slows_nothing_and_drops_are_counted(monkeypatch, nobody, protocol):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", nobody)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr(otlp, "FLUSH_S", 0.2)
    with capture_logs() as logs, otlp.tracing("coordinator") as tracer:
        began_s = time.perf_counter()
        for _ in range(10_000):
            tracer.emit(span())
        emitted_s = time.perf_counter() - began_s
        assert tracer.dropped >= 10_000 - 64 - 64
        closing_s = time.perf_counter()
    assert emitted_s < 2.0, "0.2 ms a span at the most, and no wait for the collector"
    assert time.perf_counter() - closing_s < 5.0
    (dropped,) = [each for each in logs if each["event"] == "traces.dropped"]
    assert dropped["spans"] >= 10_000 - 64 - 64


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_collector_that_refuses_counts_as_dropped(monkeypatch, protocol):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    tracer = OtlpTracer("x")
    tracer.emit(span())
    until(lambda: tracer.dropped == 1)
    tracer.close()
    assert tracer.dropped == 1  # closing counts nothing twice


IMPORTS = """
import json, sys
from marless.rpc import otlp
from marless.rpc.tracing import present
with otlp.tracing("x") as tracer:
    names = sorted(each for each in sys.modules if each.startswith("opentelemetry"))
    found = [tracer is None, present() is None, names]
print(json.dumps(found))
"""


def imported(monkeypatch, first: str = "", **variables: str) -> list[object]:
    for name in otlp.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", first + IMPORTS], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "variables", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}]
)
def test_off_nothing_is_imported(monkeypatch, variables):
    assert imported(monkeypatch, **variables) == [True, True, []]


def test_without_the_extra_a_service_starts_and_says_so(monkeypatch):
    hidden = 'import sys; sys.modules["opentelemetry"] = None\n'
    found = imported(monkeypatch, hidden, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert found[:2] == [True, True]


def test_an_unknown_protocol_is_told_and_nothing_is_traced(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    with capture_logs() as logs, otlp.tracing("coordinator") as tracer:
        assert (tracer, present()) == (None, None)
    (off,) = logs
    assert off["event"] == "traces.off" and "OTEL_EXPORTER_OTLP_PROTOCOL=http/json" in off["reason"]


def test_a_job_that_fails_at_once_leaves_few_rounds_behind():
    job = TraceScope(tracer=Kept()).of_job("j", 5.0, "")
    with within(job):
        for number in range(3 * tracing.MOST_ROUNDS):
            with phase("rollout", number):
                pass
    assert len(job.rounds) == tracing.MOST_ROUNDS
