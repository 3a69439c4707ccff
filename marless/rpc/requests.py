"""Requests as they arrive: bytes that are parsed where errors become sentences, and counts that are bounded first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from marless.errors import SpecError, shown
from marless.limits import MAX_AGENTS, MAX_COUNT, MAX_NAME
from marless.rpc import chunks
from marless.rpc.handlers import Handler, Method, wrapped
from marless.rpc.v1 import common_pb2

Read = Callable[[bytes], Any]  # Any: whatever message a method takes
Kind = TypeVar("Kind", bound=Message)


def parsing(handler: Handler) -> Handler:
    """The same handler for raw bytes, which it parses itself: what gRPC cannot parse it answers with UNKNOWN."""
    read = handler.request_deserializer
    if read is None or read is chunks.identity:
        return handler
    parsed = partial(_each if handler.request_streaming else _parsed, read)

    def coroutine(inner: Method) -> Method:
        async def call(request: Any, context: object) -> object:  # Any: bytes, or a stream of them
            return await inner(parsed(request), context)

        return call

    def generator(inner: Method) -> Method:
        async def call(request: Any, context: object) -> AsyncIterator[object]:  # Any: as above
            async for response in inner(parsed(request), context):
                yield response

        return call

    return wrapped(handler, coroutine, generator, deserializer=chunks.identity)


def _parsed(read: Read, request: bytes) -> Any:  # Any: as of `Read`
    try:
        return read(request)
    except DecodeError:
        raise SpecError("the request's bytes are not the message that this method takes") from None


async def _each(read: Read, requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:  # Any: as of `Read`
    async for request in requests:
        yield _parsed(read, request)


def message(kind: type[Kind], data: bytes, what: str) -> Kind:
    """A message that travelled inside of another one; raises SpecError, which starts with `what`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise SpecError(f"{what}: its bytes are no {kind.__name__}") from None


def check_number(what: str, number: float, least: float = 0, most: float = MAX_COUNT) -> None:
    """Raises SpecError unless a number, which may be NaN, lies between two others."""
    if not least <= number <= most:
        raise SpecError(f"{what} is {number:,}; {least:,} to {most:,} are possible")


def check_text(what: str, text: str, most: int = MAX_NAME) -> None:
    """Raises SpecError for an empty or a long text."""
    if not 0 < len(text) <= most:
        raise SpecError(f"{what} {shown(text)} has {len(text):,} characters; 1 to {most:,} are possible")


def check_names(what: str, names: Collection[str], most: int) -> None:
    """Raises SpecError for too many names, for one that is there twice, and for one that is empty or long."""
    check_number(f"the number of {what}", len(names), 0, most)
    for name in names:
        check_text(f"{what}:", name)
    if len(set(names)) < len(names):
        raise SpecError(f"{what}: one of them is there twice")


def check_groups(groups: Sequence[common_pb2.Group]) -> None:
    """Raises SpecError unless each group has a policy of its own and agents that no other has, and not too many."""
    check_names("policies of groups", [group.policy for group in groups[: MAX_AGENTS + 1]], MAX_AGENTS)
    agents = [agent for group in groups for agent in group.agents[: MAX_AGENTS + 1]]
    check_names("agents of groups", agents, MAX_AGENTS)
    for group in groups:
        if not group.agents:
            raise SpecError(f"the group of policy {group.policy} holds no agent")
        check_number(f"the version of policy {group.policy}", group.source.version)
