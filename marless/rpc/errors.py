"""One table between domain errors and gRPC status codes, applied by one interceptor and one translator.

A server answers a `MarlessError` with its status code, its sentence, and its class name in the trailing metadata, so
that the client raises the same class again. Any other exception is logged here and hidden from the client.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog

from marless import errors

STATUS: dict[type[errors.MarlessError], grpc.StatusCode] = {
    errors.SpecError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.ConflictError: grpc.StatusCode.ABORTED,
    errors.FencedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CorruptError: grpc.StatusCode.DATA_LOSS,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.CancelledJobError: grpc.StatusCode.CANCELLED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}

_CLASS_KEY = "marless-error"
_SENTENCE_BYTES = 2000  # percent-encoding may triple it, and beyond 8 KiB of headers gRPC drops the whole reply
_BY_NAME = {cls.__name__: cls for cls in STATUS}
_BY_CODE: dict[grpc.StatusCode, type[errors.MarlessError]] = {code: cls for cls, code in reversed(STATUS.items())} | {
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.UnavailableError
}

# A string, because the class can only be subscripted by a type checker. Any: methods take and return any message.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Method = Callable[..., Any]
_log = structlog.get_logger("marless.rpc")


def by_name(name: str, message: str) -> errors.MarlessError:
    """The domain error of that class name; an InternalError if there is none."""
    return _BY_NAME.get(name, errors.InternalError)(message)


def from_rpc(error: grpc.aio.AioRpcError) -> errors.MarlessError:
    """The domain error that the server raised, or the nearest one for a failure of the transport itself."""
    message = error.details() or error.code().name
    for key, value in error.trailing_metadata() or ():
        if key == _CLASS_KEY:
            return by_name(str(value), message)
    return _BY_CODE.get(error.code(), errors.InternalError)(message)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.MarlessError) -> NoReturn:
    """End the RPC with the status of `error`; a sentence too long for a header is cut."""
    sentence = str(error).encode()
    if len(sentence) > _SENTENCE_BYTES:
        sentence = sentence[:_SENTENCE_BYTES] + " …".encode()
    details = sentence.decode(errors="ignore")
    await context.abort(STATUS[type(error)], details, ((_CLASS_KEY, type(error).__name__),))


async def _translate(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    if not isinstance(error, errors.MarlessError):
        _log.error("rpc.failed", error=repr(error), exc_info=error)
        error = errors.InternalError("internal error; the service's log has the details")
    await abort(context, error)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status, for unary and streaming RPCs alike."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap whichever of the four handler kinds this method has."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        for kind in ("unary_unary", "stream_unary", "unary_stream", "stream_stream"):
            inner: Method | None = getattr(handler, kind)
            if inner is not None:
                wrap = _wrap_generator if inspect.isasyncgenfunction(inner) else _wrap_coroutine
                make = getattr(grpc, f"{kind}_rpc_method_handler")
                return make(wrap(inner), handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]
        return handler


def _wrap_coroutine(inner: Method) -> Method:
    async def call(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> object:
        try:
            return await inner(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary: everything becomes a status
            await _translate(context, error)

    return call


def _wrap_generator(inner: Method) -> Method:
    async def call(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[object]:
        try:
            async for response in inner(request, context):
                yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary: everything becomes a status
            await _translate(context, error)

    return call
