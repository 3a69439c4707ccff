"""Runs a service: options from flags and MARLESS_* variables, health checks, limits, and graceful shutdown."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import math
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client.metrics_core import Metric

from marless.core.errors import MarlessError, SpecError
from marless.core.log import structlog
from marless.rpc import chunks
from marless.rpc.addresses import advertised, host_of
from marless.rpc.admission import AdmissionInterceptor, Limits
from marless.rpc.client import (
    KEEPALIVE,
    MAX_MESSAGE_BYTES,
    PACKAGE,
    SERVICE_FILES,
    allow_many_files,
    check_process_limits,
)
from marless.rpc.errors import ErrorInterceptor
from marless.rpc.health import probed
from marless.rpc.metrics import Figures, Metrics, counter
from marless.rpc.otlp import tracing
from marless.rpc.process import (
    add_option,
    add_process_options,
    configure_logging,
    forget_secrets,
    security_of,
    stdin_closed,
)
from marless.rpc.requests import Method
from marless.rpc.roles import Role
from marless.rpc.security import Security, TokenInterceptor, check_served
from marless.rpc.traced_calls import TraceInterceptor
from marless.rpc.tracing import TraceScope, present

MAX_OPEN_RPCS = 20_000
"""RPCs that a service has open, whatever they do; beyond it gRPC itself refuses more. Most wait: see `admission`."""
MAX_REQUEST_BYTES = 4 * 2**20
"""Size limit of a message; times the number of RPCs that are served at a time, it bounds a service's memory. Bulk
frames and specs have 1 MiB."""
CONNECTION_S = 20.0
"""Age at which a connection accepts no new calls; it closes when its calls have ended, and the next call reconnects.

This closes unused connections. An idle limit would do so too, but makes gRPC print to each client's stderr.
"""
DRAIN_S = 10.0
HEALTH_PERIOD_S = 0.25
GARBAGE = (20_000, 20, 20)
"""Thresholds of the garbage collector in a service, see `gc.set_threshold`."""
WARNING_S = 14 * 86400.0
"""Time before the end of its certificate from which on a service warns."""
WARNING_PERIOD_S = 3600.0

_OPTIONS: tuple[tuple[str, Any], ...] = (  # Any: gRPC option values are ints or strings
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Otherwise a second process that serves the same port would share it in silence, instead of failing.
    ("grpc.so_reuseport", 0),
    *KEEPALIVE,
    ("grpc.http2.max_ping_strikes", 0),  # clients ping idle channels too
    # Connections that never finish their handshake must not pile up.
    ("grpc.server_handshake_timeout_ms", 3_000),
    ("grpc.max_connection_age_ms", round(CONNECTION_S * 1000)),
    # RPCs that this process has not looked at yet. From 1,000 on, gRPC would cancel some of them at random.
    ("grpc.server.max_pending_requests", MAX_OPEN_RPCS),
    ("grpc.server.max_pending_requests_hard_limit", 2 * MAX_OPEN_RPCS),
)
_STDERR = 2
_log = structlog.get_logger("marless.server")
Register = Callable[[grpc.aio.Server], None]
"""Adds a servicer to a server."""


async def _always() -> bool:
    return True


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class ServedService:
    """A servicer with hooks for health, shutdown and metrics."""

    register: Register
    ready: Callable[[], Awaitable[bool]] = _always
    """Polled; health is SERVING only while it returns True. Must not raise."""
    drain: Callable[[], Awaitable[None]] = _nothing
    """Called first when stopping, to end streams that would otherwise last until their clients disconnect."""
    name: str = ""
    """Name of the service in its proto, for reflection."""
    limits: Limits = field(default_factory=dict)
    """Methods with limits of their own; see `marless.rpc.admission`."""
    figures: Figures = tuple
    """Its Prometheus metrics, in addition to those of RPCs; see `marless.rpc.metrics`."""


Build = Callable[[str], AbstractAsyncContextManager[ServedService]]
"""Builds a service, given the address that others dial; a context manager that lasts as long as the service runs."""


@dataclass(frozen=True)
class ServerOptions:
    """Options of every service."""

    listen: str
    """host:port (port 0: any free one) or unix:PATH."""
    security: Security
    exit_with_stdin: bool = False
    """Stop when standard input closes, so that the service does not outlive the process that started it."""
    reflection: bool = False
    """Serve gRPC reflection, e.g. for grpcurl; with tokens, to operators only."""
    advertise: str = ""
    """The address, or the host, that others dial to reach this service; "": `listen`. See `addresses.advertised`."""
    metrics: str = ""
    """host:port at which to serve Prometheus metrics; "": none."""
    health: str = ""
    """host:port at which to serve the health check alone, without TLS and tokens; "": none."""


def option_parser(service: str, description: str, *, for_users: bool = False) -> argparse.ArgumentParser:
    """A parser with the options shared by all services; a service `for_users` accepts callers without a certificate."""
    parser = argparse.ArgumentParser(prog=f"python -m marless.services.{service}", description=description)
    add_option(parser, "--listen", "127.0.0.1:0", "address to serve: host:port (port 0: any free one) or unix:PATH")
    what = "address, or only the host, that others dial to reach this service; default: where it listens"
    add_option(parser, "--advertise", "", what)
    parser.add_argument(
        "--reflection", action="store_true", help="tell clients the methods of the service (gRPC reflection)"
    )
    add_option(parser, "--metrics", "", "serve Prometheus metrics over HTTP at host:port (port 0: any free one)")
    what = "serve the gRPC health check, and nothing else, without TLS and tokens at host:port: for Kubernetes' probes"
    add_option(parser, "--health", "", what)
    add_process_options(parser)
    parser.set_defaults(for_users=for_users, tls_client_ca="")
    if for_users:
        what = "with TLS, take only callers with a certificate of the authority in this PEM file"
        add_option(parser, "--tls-client-ca", "", what)
    parser.add_argument("--exit-with-stdin", action="store_true", help="stop when standard input closes")
    return parser


def server_options(args: argparse.Namespace) -> ServerOptions:
    """Create the shared options from parsed arguments."""
    security = replace(
        security_of(args, Role.SERVICE),
        tls_client_ca=args.tls_client_ca,
        mutual=bool(args.tls_client_ca) or not args.for_users,
    )
    return ServerOptions(
        args.listen,
        security,
        exit_with_stdin=args.exit_with_stdin,
        reflection=args.reflection,
        advertise=args.advertise,
        metrics=args.metrics,
        health=args.health,
    )


def run(service: str, options: ServerOptions, build: Build) -> int:
    """Run a service until a signal or the end of stdin stops it; returns 0, or 1 after an error message on stderr."""
    configure_logging()
    forget_secrets()
    allow_many_files()
    faulthandler.register(signal.SIGUSR1, file=_STDERR)  # writes where each thread is, for whoever asks why it hangs
    try:
        check_process_limits(files=SERVICE_FILES)
        with tracing(service):
            asyncio.run(_run(service, options, build))
    except MarlessError as error:
        print(f"{service}: {error}", file=sys.stderr)  # noqa: T201  # the final error message, for people
        return 1
    return 0


async def _run(service: str, options: ServerOptions, build: Build) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watch = asyncio.create_task(stdin_closed()) if options.exit_with_stdin else None
    if watch:
        watch.add_done_callback(lambda _: stop.set())
    async with serving(options, build) as address:
        # What was made before now stays: the garbage collector passes over it, and looks at the rest less often. With a
        # thousand workers, a round makes so many objects that by default their collection takes most of a pool's time.
        gc.freeze()
        gc.set_threshold(*GARBAGE)
        _log.info("serving", service=service, listen=options.listen, address=address)
        await stop.wait()
        _log.info("stopping", service=service)
    if watch:
        watch.cancel()


@asynccontextmanager
async def serving(options: ServerOptions, build: Build) -> AsyncIterator[str]:
    """Bind, build and serve until the context ends; yields the address that others dial.

    On exit it reports NOT_SERVING, drains the service, and stops the server with a grace period of `DRAIN_S`.
    """
    metrics, admission, scope = Metrics() if options.metrics else None, AdmissionInterceptor(), present()
    # In this order: strangers take no turn from others, and requests are received and parsed by the last one, after the
    # call was admitted.
    server = grpc.aio.server(
        interceptors=(
            TokenInterceptor(options.security),
            *((metrics.interceptor,) if metrics else ()),
            *((TraceInterceptor(scope.tracer),) if scope and scope.tracer else ()),
            admission,
            ErrorInterceptor(),
        ),
        options=_OPTIONS,
        maximum_concurrent_rpcs=MAX_OPEN_RPCS,
    )
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    # Bound before it is built, because a pool tells its workers this address when it starts them.
    address = advertised(_bind(server, options), options.advertise)
    tls, end_s = options.security, math.inf
    if tls.tls_cert and tls.tls_key:
        end_s = check_served(tls.tls_cert, tls.tls_key, host_of(address))
    async with build(address) as service, AsyncExitStack() as stack:
        admission.set(service.limits)
        if metrics:
            figures = partial(_figures, service, scope)
            await stack.enter_async_context(metrics.served(options.metrics, options.security, figures))
        service.register(server)
        if options.reflection:
            names = (f"{PACKAGE}.{service.name}", health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        await server.start()
        await _report(healthy, service)
        if options.health:
            await stack.enter_async_context(probed(options.health, healthy))

        async def keep_reporting() -> None:
            while True:
                await asyncio.sleep(HEALTH_PERIOD_S)
                await _report(healthy, service)

        reporting = asyncio.create_task(keep_reporting())
        warning = asyncio.create_task(_warn_of_the_end(tls.tls_cert, end_s))
        try:
            yield address
        finally:
            reporting.cancel()
            warning.cancel()
            await healthy.enter_graceful_shutdown()
            await service.drain()
            await server.stop(grace=DRAIN_S)


def _figures(service: ServedService, scope: TraceScope | None) -> Iterable[Metric]:
    dropped = scope.tracer.dropped if scope and scope.tracer else 0
    return (
        *service.figures(),
        counter("trace_spans_dropped", "Spans of traces that the collector did not get.", dropped),
    )


async def _report(healthy: health.aio.HealthServicer, service: ServedService) -> None:
    status = health_pb2.HealthCheckResponse
    await healthy.set("", status.SERVING if await service.ready() else status.NOT_SERVING)


async def _warn_of_the_end(cert: str, end_s: float) -> None:
    """Log a warning each hour when the certificate is about to expire, or has."""
    while end_s < math.inf:
        if (left_s := end_s - time.time()) < WARNING_S:
            event = "certificate.expires" if left_s > 0 else "certificate.expired"
            _log.warning(event, cert=cert, hours=round(left_s / 3600), hint="make a new one, and restart this service")
        await asyncio.sleep(WARNING_PERIOD_S)


def _bind(server: grpc.aio.Server, options: ServerOptions) -> str:
    credentials = options.security.server_credentials(options.listen)
    if options.listen.startswith("unix:"):
        _make_way(Path(options.listen.removeprefix("unix:")))
    masked = os.umask(0o077) if options.security.tokens is None else None  # only this user may connect to a unix socket
    try:
        if credentials is None:
            port = server.add_insecure_port(options.listen)
        else:
            port = server.add_secure_port(options.listen, credentials)
    except RuntimeError:
        raise SpecError(
            f"cannot listen on {options.listen}: it is in use, or not an address of this machine; choose another one"
        ) from None
    finally:
        if masked is not None:
            os.umask(masked)
    return options.listen if options.listen.startswith("unix:") else f"{options.listen.rpartition(':')[0]}:{port}"


def _make_way(path: Path) -> None:
    """Remove the unix socket that an earlier process left; raises SpecError if it is in use or not a socket."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise SpecError(
                f"cannot listen on unix:{path}: a file that is not a socket exists there; choose another path"
            )
        if _answers(path):
            raise SpecError(f"cannot listen on unix:{path}: it is in use; choose another path")
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SpecError(f"cannot listen on unix:{path}: {error.strerror}; choose another path") from None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # a busy process listens
            return True
        except OSError:
            return False
    return True


def register_bulk(
    server: grpc.aio.Server, service: str, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]]
) -> None:
    """Replace generated handlers of `service` by ones for raw bytes (see `marless.rpc.chunks`)."""
    server.add_registered_method_handlers(f"{PACKAGE}.{service}", dict(methods))


def bulk_upload(method: Method, reply: Callable[[Any], bytes]) -> grpc.RpcMethodHandler[Any, Any]:
    """Handler for an upload: a client stream of frames, and one protobuf reply."""
    return grpc.stream_unary_rpc_method_handler(method, request_deserializer=chunks.identity, response_serializer=reply)


def bulk_download(method: Method, request: Callable[[bytes], Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """Handler for a download: a protobuf request, and a server stream of frames."""
    return grpc.unary_stream_rpc_method_handler(
        method, request_deserializer=request, response_serializer=chunks.identity
    )
