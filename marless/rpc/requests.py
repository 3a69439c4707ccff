"""Incoming requests: wraps gRPC's method handlers, of all four kinds, parses messages, and checks counts and sizes;
malformed messages become SpecErrors.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from marless.core.errors import SpecError, UnreachableError, shown
from marless.core.limits import MAX_AGENTS, MAX_COUNT, MAX_NAME
from marless.rpc import chunks
from marless.rpc.v1 import common_pb2

# A string, because the class is subscriptable only for type checkers. Any: methods take and return any message.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Method = Callable[..., Any]
Wrap = Callable[[Method], Method]
Read = Callable[[bytes], Any]  # Any: whatever message a method takes
Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods
Kind = TypeVar("Kind", bound=Message)


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


def surrounded(handler: Handler, surround: Callable[[Context], AbstractContextManager[None]]) -> Handler:
    """The same handler whose calls each run within a block of their own, which `surround` makes of their context."""

    def coroutine(inner: Method) -> Method:
        async def call(request: object, context: Context) -> object:
            with surround(context):
                return await inner(request, context)

        return call

    def generator(inner: Method) -> Method:
        async def call(request: object, context: Context) -> AsyncIterator[object]:
            with surround(context):
                async for response in inner(request, context):
                    yield response

        return call

    return wrapped(handler, coroutine, generator)


def parsing(handler: Handler) -> Handler:
    """The same handler taking raw bytes and parsing them itself, because gRPC answers malformed requests with UNKNOWN.

    A single request is read as a stream of length one, which clients do not notice, so that it can be given a time
    limit: gRPC itself would wait for it for as long as the connection lasts.
    """
    read = handler.request_deserializer or chunks.identity
    if handler.request_streaming:
        # Bulk methods read their frames themselves, within limits of their own.
        return handler if read is chunks.identity else _parsing_each(handler, read)
    inner: Any = handler.unary_stream or handler.unary_unary  # Any: a coroutine function or a generator function

    async def coroutine(_: AsyncIterator[bytes], context: Context) -> object:
        return await inner(_parsed(read, await _only(context)), context)

    async def generator(_: AsyncIterator[bytes], context: Context) -> AsyncIterator[object]:
        async for response in inner(_parsed(read, await _only(context)), context):
            yield response

    method = generator if inspect.isasyncgenfunction(inner) else coroutine
    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(method, chunks.identity, handler.response_serializer)


async def _only(context: Context) -> bytes:
    """Read the only request of a call; raises UnreachableError if it is not there in time, SpecError if there is none.

    Reads from the context, because gRPC's request iterator keeps the last request in memory until the call ends.
    """
    try:
        async with asyncio.timeout(chunks.STALL_S):
            request = await context.read()
    except TimeoutError:
        raise UnreachableError(f"no request came within {chunks.STALL_S:g} s; call again") from None
    if request is grpc.aio.EOF:
        raise SpecError("the call ended without a request")
    return request  # type: ignore[no-any-return]


def _parsing_each(handler: Handler, read: Read) -> Handler:
    def coroutine(inner: Method) -> Method:
        async def call(_: AsyncIterator[bytes], context: Context) -> object:
            return await inner(_each(read, context), context)

        return call

    def generator(inner: Method) -> Method:
        async def call(_: AsyncIterator[bytes], context: Context) -> AsyncIterator[object]:
            async for response in inner(_each(read, context), context):
                yield response

        return call

    return wrapped(handler, coroutine, generator, deserializer=chunks.identity)


def _parsed(read: Read, request: bytes) -> Any:  # Any: as of `Read`
    try:
        return read(request)
    except DecodeError:
        raise SpecError("the request's bytes are not the message that this method takes") from None


async def _each(read: Read, context: Context) -> AsyncIterator[Any]:  # Any: as of `Read`
    """The requests of a stream; none is kept in memory while waiting for the next one."""
    while (request := await context.read()) is not grpc.aio.EOF:
        parsed = _parsed(read, request)
        del request
        yield parsed
        del parsed


def message(kind: type[Kind], data: bytes, what: str) -> Kind:
    """Parse a message embedded in another one; raises SpecError, starting with `what`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise SpecError(f"{what}: its bytes are no {kind.__name__}") from None


def check_number(what: str, number: float, least: float = 0, most: float = MAX_COUNT) -> None:
    """Raises SpecError unless `least` ≤ number ≤ `most`; NaN is refused."""
    if not least <= number <= most:
        raise SpecError(f"{what} is {number:,}; {least:,} to {most:,} are possible")


def check_text(what: str, text: str, most: int = MAX_NAME) -> None:
    """Raises SpecError for a text that is empty or longer than `most` characters."""
    if not 0 < len(text) <= most:
        raise SpecError(f"{what} {shown(text)} has {len(text):,} characters; 1 to {most:,} are possible")


def check_names(what: str, names: Collection[str], most: int) -> None:
    """Raises SpecError for too many names, for duplicates, and for an empty or too long name."""
    check_number(f"the number of {what}", len(names), 0, most)
    for name in names:
        check_text(f"{what}:", name)
    if len(set(names)) < len(names):
        raise SpecError(f"{what}: one of them is given twice")


def check_groups(groups: Sequence[common_pb2.Group]) -> None:
    """Raises SpecError unless groups are non-empty, with distinct policies and agents, and within the limits."""
    # One more than is allowed suffices to refuse a list, however long it is.
    check_names("policies of groups", [group.policy for group in groups[: MAX_AGENTS + 1]], MAX_AGENTS)
    agents = [agent for group in groups for agent in group.agents[: MAX_AGENTS + 1]]
    check_names("agents of groups", agents, MAX_AGENTS)
    for group in groups:
        if not group.agents:
            raise SpecError(f"the group of policy {group.policy} holds no agent")
        check_number(f"the version of policy {group.policy}", group.source.version)
