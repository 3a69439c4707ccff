"""Collectors of OpenTelemetry's protocol, over HTTP and over gRPC: they decode what they get, and keep the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One span."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, object]


@dataclass
class Collector:
    """What has arrived so far."""

    endpoint: str = ""
    spans: list[Collected] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    """Of the requests: the key that they show."""

    def take(self, request: ExportTraceServiceRequest) -> None:
        for each in request.resource_spans:
            [service] = [a.value.string_value for a in each.resource.attributes if a.key == "service.name"]
            self.spans += [
                Collected(
                    service=service.removeprefix("marless."),
                    name=span.name,
                    trace=span.trace_id.hex(),
                    span=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    failed=span.status.code == span.status.STATUS_CODE_ERROR,
                    attributes={a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes},
                )
                for scope in each.scope_spans
                for span in scope.spans
            ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on a free port of loopback."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            collector.headers.append(self.headers.get("x-key", ""))
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def collecting_by_grpc() -> Iterator[Collector]:
    """A collector that speaks gRPC on a free port of loopback."""
    collector = Collector()

    class Servicer(TraceServiceServicer):
        def Export(self, request, context):  # noqa: N802
            collector.headers.append(dict(context.invocation_metadata()).get("x-key", ""))
            collector.take(request)
            return ExportTraceServiceResponse()

    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        add_TraceServiceServicer_to_server(Servicer(), server)
        collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield collector
        finally:
            server.stop(None).wait()
