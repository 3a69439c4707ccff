"""One table between domain errors and gRPC status codes, applied by one interceptor and one translator.

A server answers a `MarlessError` with its status code, its sentence, and its class name and detail in the trailing
metadata, so that the client raises the same error again; RESOURCE_EXHAUSTED also says after how long to try again
(`retry-after-ms`). Any other exception is logged here and hidden from the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn
from urllib.parse import quote

import grpc

from marless import errors
from marless.rpc.handlers import Handler, Method, wrapped
from marless.rpc.requests import parsing

STATUS: dict[type[errors.MarlessError], grpc.StatusCode] = {
    errors.SpecError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.AlreadyExistsError: grpc.StatusCode.ALREADY_EXISTS,
    errors.ConflictError: grpc.StatusCode.ABORTED,
    errors.FencedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StaleError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.JobStateError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CorruptError: grpc.StatusCode.DATA_LOSS,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooLargeError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.UnreachableError: grpc.StatusCode.UNAVAILABLE,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDeniedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.CancelledJobError: grpc.StatusCode.CANCELLED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
}

_CLASS_KEY = "marless-error"
_WRITE_FAILED = "Internal error from Core"
"""What grpc.aio says when the call ended under a write, whatever it ended with: https://github.com/grpc/grpc/issues/36066"""
_DETAIL_KEY = "marless-detail-bin"
_RETRY_KEY = "retry-after-ms"
_LONGEST_RETRY_S = 600.0  # what is believed of a hint
_TOO_LONG = "larger than max"
"""What gRPC says of a message above its limit; its code is the one of a server that is busy."""
_SENTENCE_BYTES = 2000  # percent-encoding may triple it, and beyond 8 KiB of headers gRPC drops the whole reply
_TRAILER_BYTES = 7000  # what a sentence and its detail may take of those
_BY_NAME = {cls.__name__: cls for cls in STATUS}
_BY_CODE: dict[grpc.StatusCode, type[errors.MarlessError]] = {code: cls for cls, code in reversed(STATUS.items())} | {
    grpc.StatusCode.UNAVAILABLE: errors.UnreachableError,  # ours carry their class: this one is the transport's own
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.UnreachableError,
    grpc.StatusCode.CANCELLED: errors.UnreachableError,  # by a server that stops
    grpc.StatusCode.UNKNOWN: errors.UnreachableError,  # a stream that was reset
    grpc.StatusCode.FAILED_PRECONDITION: errors.FencedError,
}


def by_name(name: str, message: str, detail: str = "") -> errors.MarlessError:
    """The domain error of that class name; an InternalError if there is none."""
    error = _BY_NAME.get(name, errors.InternalError)(message)
    error.detail = detail
    return error


def from_rpc(error: grpc.aio.AioRpcError, peer: str) -> errors.MarlessError:
    """The domain error that `peer` raised, or the nearest one for a failure of the transport itself."""
    message = error.details() or error.code().name
    trailer = dict(error.trailing_metadata() or ())
    if _CLASS_KEY in trailer:
        detail = bytes(trailer.get(_DETAIL_KEY, b"")).decode(errors="ignore")
        return _hinted(by_name(str(trailer[_CLASS_KEY]), message, detail), str(trailer.get(_RETRY_KEY, "")))
    kind = _BY_CODE.get(error.code(), errors.InternalError)
    if kind is errors.OverloadedError:
        if _TOO_LONG in message:
            return errors.TooLargeError(f"{peer}: {message}")
        return kind(f"no room in the {peer}: {message}")
    if message == _WRITE_FAILED:
        kind, message = errors.UnreachableError, "the connection ended under a transfer"
    return kind(f"{peer}: {message}" if kind is errors.UnreachableError else message)


def _hinted(error: errors.MarlessError, after_ms: str) -> errors.MarlessError:
    if isinstance(error, errors.OverloadedError) and after_ms.isdecimal():
        error.retry_after_s = min(int(after_ms) / 1000, _LONGEST_RETRY_S)
    return error


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.MarlessError) -> NoReturn:
    """End the RPC with the status of `error`; a sentence too long for a header is cut, a detail loses its beginning."""
    sentence = str(error).encode(errors="backslashreplace")
    if len(sentence) > _SENTENCE_BYTES:
        sentence = sentence[:_SENTENCE_BYTES] + " …".encode()
    details = sentence.decode(errors="ignore")
    trailer: tuple[tuple[str, str | bytes], ...] = ((_CLASS_KEY, type(error).__name__),)
    if error.detail:
        room = (_TRAILER_BYTES - len(quote(details))) * 3 // 4  # it travels as base64
        trailer += ((_DETAIL_KEY, error.detail.encode(errors="backslashreplace")[-room:]),)
    if isinstance(error, errors.OverloadedError):
        trailer += ((_RETRY_KEY, str(round(error.retry_after_s * 1000))),)
    await context.abort(STATUS[type(error)], details, trailer)


def _answer(error: Exception) -> errors.MarlessError | NotImplementedError:
    """What a client is told of an exception; without its traceback, which would hold the request for as long."""
    if not isinstance(error, errors.MarlessError | NotImplementedError):
        import structlog  # servers only: a client starts a quarter sooner without

        structlog.get_logger("marless.rpc").error("rpc.failed", error=repr(error), exc_info=error)
        return errors.InternalError("internal error; the service's log has the details")
    error.__context__ = None
    return error.with_traceback(None)


async def _end(
    context: grpc.aio.ServicerContext[Any, Any], error: errors.MarlessError | NotImplementedError
) -> NoReturn:
    if isinstance(error, errors.MarlessError):
        await abort(context, error)
    # By a generated servicer, whose method nobody has written.
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this service does not have that method")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns what a handler raises into a status, for unary and streaming RPCs alike; so are requests that are no
    messages, which are therefore parsed in here.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap whichever of the four handler kinds this method has."""
        handler = await continuation(handler_call_details)
        return handler and wrapped(parsing(handler), _wrap_coroutine, _wrap_generator)


def _wrap_coroutine(inner: Method) -> Method:
    async def call(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> object:
        try:
            return await inner(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary: everything becomes a status
            answer = _answer(error)
        return await _end(context, answer)

    return call


def _wrap_generator(inner: Method) -> Method:
    async def call(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[object]:
        try:
            async for response in inner(request, context):
                yield response
            return
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary: everything becomes a status
            answer = _answer(error)
        await _end(context, answer)

    return call
