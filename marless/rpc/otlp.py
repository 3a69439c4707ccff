"""Exports spans by OpenTelemetry's protocol over HTTP or gRPC, as the variables OTEL_… say (extra `otel`).

Only this module imports OpenTelemetry, and only if an endpoint is set. Spans wait in a bounded queue; a thread of the
SDK sends them. While nothing answers, further ones are dropped, and counted.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from marless.core.errors import SpecError
from marless.core.log import structlog
from marless.rpc.tracing import TracedSpan, Tracer, TraceScope, within

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP, GRPC = "http/protobuf", "grpc"
"""Values of these variables; HTTP without one, as OpenTelemetry's specification recommends."""
SECRETS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
"""Variables that may hold a key of the collector."""
QUEUE, BATCH, DELAY_MS = 4096, 512, 500
"""Spans that wait, spans sent at once, and milliseconds between two sends, unless OTEL_BSP_… say otherwise. A process
that is killed loses the spans that wait."""
FLUSH_S = 2.0
"""How long the end of a process waits for its last spans to be sent."""
_log = structlog.get_logger("marless.traces")


class Sent(Protocol):
    """Called with the number of spans that were sent."""

    def __call__(self, spans: int, *, taken: bool) -> None:
        """`taken` is False if the collector did not take them."""


@contextmanager
def tracing(service: str) -> Iterator[OtlpTracer | None]:
    """While the context lasts, this process traces; it yields None, and nothing is imported, unless it is to.

    Tracing is on where an endpoint is set, OTEL_SDK_DISABLED is not, and the extra `otel` is installed.
    """
    if not any(map(os.environ.get, ENDPOINTS)) or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        yield None
        return
    try:
        tracer = OtlpTracer(service)
    except ImportError:
        _log.warning("traces.off", reason=f"{ENDPOINTS[1]} is set: install marless[otel], or unset it")
        yield None
        return
    except SpecError as error:
        _log.warning("traces.off", reason=str(error))
        yield None
        return
    for name in SECRETS:
        os.environ.pop(name, None)  # what runs in this process and its workers needs no key of the collector
    try:
        with within(TraceScope(tracer=tracer)):
            yield tracer
    finally:
        tracer.close()


class OtlpTracer(Tracer):
    """Sends spans of one service to a collector."""

    def __init__(self, service: str) -> None:
        """Read OTEL_…; raises ImportError without the extra `otel`, SpecError for an unknown protocol."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        # What the exporter tells of a collector that does not answer is counted here, and told once.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        names = {"service.name": os.environ.get("OTEL_SERVICE_NAME") or f"marless.{service}"}
        self._resource = Resource.create({"service.version": version("marless")}).merge(Resource(names))
        self._lock = threading.Lock()
        self._waiting = self._dropped = 0
        self._room = _number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE)
        self._processor = BatchSpanProcessor(
            _counting(_exporter(), self._sent),
            max_queue_size=self._room,
            max_export_batch_size=_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(BATCH, self._room)),
            schedule_delay_millis=_number("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS),
        )

    @property
    def dropped(self) -> int:
        return self._dropped

    def emit(self, span: TracedSpan) -> None:
        with self._lock:
            # Counted here, because the processor's own queue drops without telling how many.
            if self._waiting >= self._room:
                self._dropped += 1
                return
            self._waiting += 1
        self._processor.on_end(_readable(span, self._resource))

    def close(self) -> None:
        """Send what waits for at most `FLUSH_S`, and end; the rest is lost."""
        ending = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(FLUSH_S)
        if lost := self._dropped + self._waiting:
            _log.warning("traces.dropped", spans=lost)

    def _sent(self, spans: int, *, taken: bool) -> None:
        with self._lock:
            self._waiting -= spans
            first, self._dropped = not self._dropped, self._dropped + (0 if taken else spans)
        if first and not taken:
            _log.warning("traces.not_taken", spans=spans, hint="is the collector of OTEL_EXPORTER_OTLP_ENDPOINT up?")


def _exporter() -> SpanExporter:
    """What sends spans by the protocol that is set."""
    name = next(filter(os.environ.get, PROTOCOLS), PROTOCOLS[1])
    protocol = os.environ.get(name) or HTTP
    if protocol == GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        return over_grpc.OTLPSpanExporter()
    if protocol == HTTP:
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

        return over_http.OTLPSpanExporter()
    raise SpecError(f"{name}={protocol}: this protocol is not known here; set {HTTP} or {GRPC}")


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return max(int(text), 1) if text.isdecimal() else default


def _readable(span: TracedSpan, resource: Resource) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def context(identifier: str) -> SpanContext:
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int(span.trace, 16), int(identifier, 16), is_remote=False, trace_flags=sampled)

    return ReadableSpan(
        name=span.name,
        context=context(span.span),
        parent=context(span.parent) if span.parent else None,
        resource=resource,
        attributes=dict(span.attributes),
        kind=SpanKind.SERVER if span.serves else SpanKind.INTERNAL,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=int(span.start_s * 1e9),
        end_time=int(span.end_s * 1e9),
        instrumentation_scope=InstrumentationScope("marless"),
    )


def _counting(exporter: SpanExporter, sent: Sent) -> SpanExporter:
    """The exporter, which tells how many spans were sent, and whether they were taken."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Counting(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = SpanExportResult.FAILURE
            try:
                result = exporter.export(spans)
            finally:
                sent(len(spans), taken=result is SpanExportResult.SUCCESS)
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

    return Counting()
