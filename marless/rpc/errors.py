"""Translates domain errors to gRPC status codes in servers, and back in clients.

A server answers a `MarlessError` with its status code and message, and with its class name and detail in the trailing
metadata, so that the client raises the same error; RESOURCE_EXHAUSTED also carries a retry delay (`retry-after-ms`).
Any other exception is logged by the server and hidden from the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn
from urllib.parse import quote

import grpc

from marless.core import errors
from marless.rpc.requests import Handler, Method, parsing, wrapped

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
"""grpc.aio's message if a call ended during a write, whatever its status: https://github.com/grpc/grpc/issues/36066"""
_TLS = {
    "CERTIFICATE_VERIFY_FAILED: certificate has expired": "its TLS certificate has expired; give it a new one",
    "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid": "its TLS certificate is not valid yet; compare the "
    "clocks of both machines",
    "Hostname Verification Check failed": "its TLS certificate is for another host; dial it by a name that is in its "
    "certificate, or add the dialled one",
    # After those that contain it, because the first part that fits counts.
    "CERTIFICATE_VERIFY_FAILED": "its TLS certificate is not of the authority that is trusted here; set --tls-ca "
    "(MARLESS_TLS_CA) to the authority that has signed it",
    "WRONG_VERSION_NUMBER": "it serves without TLS; unset --tls-ca (MARLESS_TLS_CA), or give it a certificate",
}
"""Part of gRPC's message for a failed TLS handshake → what is wrong with the server's side, and what to do."""
_SILENT = ("timed out before receiving SETTINGS frame", "Deadline Exceeded")
"""Parts of gRPC's messages if a connection was accepted, and then nothing came."""
_DETAIL_KEY = "marless-detail-bin"
_RETRY_KEY = "retry-after-ms"
_LONGEST_RETRY_S = 600.0  # longer hints are cut to this
_TOO_LONG = "larger than max"
"""Part of gRPC's message for a request above its size limit, which has the same code as an overloaded server."""
_SENTENCE_BYTES = 2000  # percent-encoding may triple it, and beyond 8 KiB of headers gRPC drops the whole reply
_TRAILER_BYTES = 7000  # of those 8 KiB, for the message and its detail
_BY_NAME = {cls.__name__: cls for cls in STATUS}
_BY_CODE: dict[grpc.StatusCode, type[errors.MarlessError]] = {code: cls for cls, code in reversed(STATUS.items())} | {
    grpc.StatusCode.UNAVAILABLE: errors.UnreachableError,  # from the transport: our own errors carry their class
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.UnreachableError,
    grpc.StatusCode.CANCELLED: errors.UnreachableError,  # by a server that stops
    grpc.StatusCode.UNKNOWN: errors.UnreachableError,  # a stream that was reset
    grpc.StatusCode.FAILED_PRECONDITION: errors.FencedError,
}


def by_name(name: str, message: str, detail: str = "") -> errors.MarlessError:
    """Create the domain error of that class name; InternalError if the name is unknown."""
    error = _BY_NAME.get(name, errors.InternalError)(message)
    error.detail = detail
    return error


def from_rpc(error: grpc.aio.AioRpcError, peer: str) -> errors.MarlessError:
    """The domain error that `peer` raised, or the closest one if the transport itself failed."""
    message = error.details() or error.code().name
    trailer = dict(error.trailing_metadata() or ())
    if _CLASS_KEY in trailer:
        detail = bytes(trailer.get(_DETAIL_KEY, b"")).decode(errors="ignore")
        raised = by_name(str(trailer[_CLASS_KEY]), message, detail)
        after_ms = str(trailer.get(_RETRY_KEY, ""))
        if isinstance(raised, errors.OverloadedError) and after_ms.isdecimal():
            raised.retry_after_s = min(int(after_ms) / 1000, _LONGEST_RETRY_S)
        return raised
    kind = _BY_CODE.get(error.code(), errors.InternalError)
    if kind is errors.OverloadedError:
        if _TOO_LONG in message:
            return errors.TooLargeError(f"{peer}: {message}")
        return kind(f"no room in the {peer}: {message}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return kind(
            f"{peer}: what answers has no such method: it is another service, or of another version of marless; "
            "check the address"
        )
    if kind is errors.UnreachableError:
        message = next((sentence for part, sentence in _TLS.items() if part in message), message)
    if message == _WRITE_FAILED:
        kind, message = errors.UnreachableError, "the connection ended under a transfer"
    return kind(f"{peer}: {message}" if kind is errors.UnreachableError else message)


def is_untrusted(error: errors.MarlessError) -> bool:
    """True if a call failed because of the server's TLS certificate, as the error's sentence says."""
    return any(sentence in str(error) for sentence in _TLS.values())


def is_silent(error: errors.MarlessError) -> bool:
    """True if a call failed because what has taken the connection did not answer: it is stopped, hangs, or is busy."""
    return any(sentence in str(error) for sentence in _SILENT)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: errors.MarlessError) -> NoReturn:
    """End the RPC with the status of `error`. A message too long for a header is cut; a detail keeps only its end."""
    sentence = str(error).encode(errors="backslashreplace")
    if len(sentence) > _SENTENCE_BYTES:
        sentence = sentence[:_SENTENCE_BYTES] + " …".encode()
    details = sentence.decode(errors="ignore")
    trailer: tuple[tuple[str, str | bytes], ...] = ((_CLASS_KEY, type(error).__name__),)
    if error.detail:
        room = (_TRAILER_BYTES - len(quote(details))) * 3 // 4  # it is sent as base64
        trailer += ((_DETAIL_KEY, error.detail.encode(errors="backslashreplace")[-room:]),)
    if isinstance(error, errors.OverloadedError):
        trailer += ((_RETRY_KEY, str(round(error.retry_after_s * 1000))),)
    await context.abort(STATUS[type(error)], details, trailer)


def _answer(error: Exception) -> errors.MarlessError | NotImplementedError:
    """The error to report to the client, without its traceback, which would keep the request in memory."""
    if not isinstance(error, errors.MarlessError | NotImplementedError):
        # here, because only servers log: a client starts in a quarter less time without it
        from marless.core.log import structlog

        structlog.get_logger("marless.rpc").error("rpc.failed", error=repr(error), exc_info=error)
        return errors.InternalError("internal error; the service's log has the details")
    error.__context__ = None
    return error.with_traceback(None)


async def _end(
    context: grpc.aio.ServicerContext[Any, Any], error: errors.MarlessError | NotImplementedError
) -> NoReturn:
    if isinstance(error, errors.MarlessError):
        await abort(context, error)
    # Raised by a generated servicer for a method that is not implemented.
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this service does not have that method")


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns exceptions of handlers into gRPC statuses, for unary and streaming RPCs.

    It also parses the requests, so that a malformed one gets a proper status too.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wrap the method's handler, of any of gRPC's four kinds."""
        handler = await continuation(handler_call_details)
        return handler and wrapped(parsing(handler), _wrap_coroutine, _wrap_generator)


def _wrap_coroutine(inner: Method) -> Method:
    async def call(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> object:
        try:
            return await inner(request, context)
        # The handler has ended the call with a status of its own; gRPC does not let it be ended twice.
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  # the boundary: everything becomes a status
            answer = _answer(error)
        # Outside of the `except`, or what `abort` raises would refer to the error, and through its frames to the
        # request.
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
