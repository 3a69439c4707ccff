"""Calls that a service serves, as spans of the traces to which they belong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import grpc

from marless.rpc.client import PACKAGE
from marless.rpc.requests import Context, Handler, surrounded
from marless.rpc.tracing import NAME_KEY, TRACE_KEY, Tracer, called, scope_of, traced, within


class TraceInterceptor(grpc.aio.ServerInterceptor):
    """Emits a span for each call that names one as its parent; what the call does is below it. Others pass."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        told = dict(handler_call_details.invocation_metadata or ())
        scope = scope_of(str(told.get(TRACE_KEY, "")), self._tracer)
        if handler is None or scope is None:
            return handler
        method = str(handler_call_details.method).removeprefix("/").removeprefix(f"{PACKAGE}.")
        name = called(str(told.get(NAME_KEY, ""))) or method
        facts = {"rpc.system": "grpc", "rpc.method": method}

        @contextmanager
        def surround(_: Context) -> Iterator[None]:
            with within(scope), traced(name, facts, serves=True):
                yield

        return surrounded(handler, surround)
