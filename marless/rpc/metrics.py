"""Prometheus metrics of a service: served over HTTP by a thread, collected on the service's event loop.

Domain objects keep plain numbers and do not depend on this module. Each scrape calls the service's `figures` on its own
event loop, so that values are consistent, and a scrape fails if the loop hangs. Only RPCs are measured as they happen,
by an interceptor that is installed only if metrics are enabled.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from marless.core.errors import SpecError
from marless.core.log import structlog
from marless.rpc.addresses import is_local
from marless.rpc.client import PACKAGE
from marless.rpc.requests import Context, Handler, surrounded
from marless.rpc.security import Security

SCRAPE_TIMEOUT_S = 5.0
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_log = structlog.get_logger("marless.server")
Figures = Callable[[], Iterable[Metric]]
"""Called on the service's event loop at each scrape; must not block."""
Values = float | Mapping[str, float]


def gauge(name: str, meaning: str, values: Values, by: str = "") -> Metric:
    """A Prometheus gauge, or one for each value of the label `by`."""
    return _family(GaugeMetricFamily, name, meaning, values, by)


def counter(name: str, meaning: str, values: Values, by: str = "") -> Metric:
    """A Prometheus counter, which only grows while the process lives, or one for each value of the label `by`."""
    return _family(CounterMetricFamily, name, meaning, values, by)


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, meaning: str, values: Values, by: str
) -> Metric:
    if not isinstance(values, Mapping):
        return kind(f"marless_{name}", meaning, value=values)
    family = kind(f"marless_{name}", meaning, labels=[by])
    for label, value in values.items():
        family.add_metric([label], value)
    return family


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._rpcs = Histogram(
            "marless_rpc_seconds",
            "RPCs that have ended, by method and status code; a stream lasts until it is closed.",
            ("method", "code"),
            registry=self._registry,
            buckets=_BUCKETS_S,
        )
        ProcessCollector(registry=self._registry)
        self.interceptor = _RpcTimer(self._rpcs)

    @asynccontextmanager
    async def served(self, address: str, security: Security, figures: Figures) -> AsyncIterator[None]:
        """Serve /metrics over HTTP until the context ends; raises SpecError if `address` cannot be used."""
        server, thread = _serve(address, security, self._registry)
        self._registry.register(_OnLoop(asyncio.get_running_loop(), figures))
        host, port = server.server_address[:2]
        _log.info("metrics", address=f"{host}:{port}")
        try:
            yield
        finally:
            # In threads, because the server looks only every half second whether it is to end.
            await asyncio.to_thread(server.shutdown)
            await asyncio.to_thread(thread.join)
            server.server_close()


def _serve(address: str, security: Security, registry: CollectorRegistry) -> Any:  # Any: untyped in prometheus_client
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise SpecError(f"--metrics {address}: give host:port, e.g. 127.0.0.1:9100 (port 0: any free one)")
    tls: dict[str, Any] = {}  # Any: paths and a flag
    if not is_local(address):
        if not (security.tls_cert and security.tls_key and security.tls_ca):
            raise SpecError(
                f"--metrics {address} is not a loopback address: set --tls-cert, --tls-key, --tls-ca (whoever reads "
                "then needs a certificate of that authority), or serve metrics on 127.0.0.1"
            )
        tls = {
            "certfile": security.tls_cert,
            "keyfile": security.tls_key,
            "client_cafile": security.tls_ca,
            "client_auth_required": True,
        }
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry, **tls)
    except (OSError, OverflowError) as error:
        raise SpecError(f"--metrics {address}: cannot be served there ({error}); choose another address") from None
    if isinstance(server.socket, ssl.SSLSocket):  # else a client that connects and stays silent blocks all others
        server.socket.do_handshake_on_connect = False  # type: ignore[attr-defined]  # missing in typeshed
    return server, thread


class _OnLoop(Collector):
    """Collects a service's figures on its event loop, where they are modified."""

    def __init__(self, loop: asyncio.AbstractEventLoop, figures: Figures) -> None:
        self._loop = loop
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        return ()  # registering would collect otherwise

    def collect(self) -> Iterable[Metric]:
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(SCRAPE_TIMEOUT_S)

    async def _read(self) -> list[Metric]:
        return list(self._figures())


class _RpcTimer(grpc.aio.ServerInterceptor):
    """Measures the duration of every RPC; placed between the token check and the translation of errors."""

    def __init__(self, rpcs: Histogram) -> None:
        self._rpcs = rpcs

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the method's handler."""
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method).removeprefix("/").removeprefix(f"{PACKAGE}.")
        return handler and surrounded(handler, partial(self._timed, method))

    @contextmanager
    def _timed(self, method: str, context: Context) -> Iterator[None]:
        started_s = time.perf_counter()
        code = ""
        try:
            yield
        # Its caller has gone away before a status was set; without this, the call would count as OK.
        except (asyncio.CancelledError, GeneratorExit):
            code = "CANCELLED"
            raise
        finally:
            code = code or _name(context.code())
            self._rpcs.labels(method, code).observe(time.perf_counter() - started_s)


def _name(code: Any) -> str:  # Any: gRPC returns an int, an enum member, or None for OK
    if isinstance(code, grpc.StatusCode):
        return code.name
    return next((each.name for each in grpc.StatusCode if each.value[0] == code), "OK")
