"""Wraps gRPC method handlers of all four kinds (unary or streaming request and response)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc

# A string, because the class is subscriptable only for type checkers. Any: methods take and return any message.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Method = Callable[..., Any]
Wrap = Callable[[Method], Method]


def wrapped(
    handler: Handler, coroutine: Wrap, generator: Wrap, deserializer: Callable[[bytes], Any] | None = None
) -> Handler:
    """The same handler with its method wrapped: by `generator` if it is an async generator, else by `coroutine`.

    A `deserializer` replaces the handler's own.
    """
    for kind in ("unary_unary", "stream_unary", "unary_stream", "stream_stream"):
        inner: Method | None = getattr(handler, kind)
        if inner is not None:
            wrap = generator if inspect.isasyncgenfunction(inner) else coroutine
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            return make(wrap(inner), deserializer or handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]
    return handler
