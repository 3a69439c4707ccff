"""The client's side of gRPC without sockets: channels with the interface of `grpc.aio.Channel`.

A simulation puts `Channel` and `Server` in the place of `grpc.aio.insecure_channel` and `grpc.aio.server`. All that
marless has around gRPC runs as it is: stubs, servicers, interceptors, deadlines, retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from tests.simulation.call import CODE, EOF, Call
from tests.simulation.network import Network


class Channel:
    """The client's side, as `grpc.aio.Channel`."""

    def __init__(self, network: Network, address: str, options: Any = None) -> None:
        self._network = network
        self._address = address
        self._calls: dict[Call, None] = {}

    def _make(self, method: str, write: Any, read: Any) -> Callable[..., Call]:
        def begin(*, timeout: float | None, metadata: Any, wait_for_ready: bool | None, lasts: bool = False) -> Call:
            call = Call(self._network, self._address, method, tuple(metadata or ()), write, read)
            call.lasts = lasts
            self._calls[call] = None
            call.over.append(lambda: self._calls.pop(call, None))
            call.begin(timeout, wait=bool(wait_for_ready))
            return call

        return begin

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        make = self._make(method, request_serializer, response_deserializer)

        def call(request: Any, *, timeout: Any = None, metadata: Any = None, wait_for_ready: Any = None) -> Any:
            made = make(timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready)
            made.send_all([request])
            return Reply(made)

        return call

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        make = self._make(method, request_serializer, response_deserializer)

        def call(
            requests: Iterable[Any], *, timeout: Any = None, metadata: Any = None, wait_for_ready: Any = None
        ) -> Any:
            made = make(timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready)
            made.send_all(requests)
            return Reply(made)

        return call

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        make = self._make(method, request_serializer, response_deserializer)

        def call(request: Any, *, timeout: Any = None, metadata: Any = None, wait_for_ready: Any = None) -> Call:
            made = make(timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready)
            made.send_all([request], may_repeat=False)
            return made

        return call

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any
    ) -> Any:
        make = self._make(method, request_serializer, response_deserializer)

        def call(*, timeout: Any = None, metadata: Any = None, wait_for_ready: Any = None) -> Call:
            return make(timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready, lasts=True)

        return call

    async def close(self, grace: float | None = None) -> None:
        for call in list(self._calls):
            call.cancel()


class Reply:
    """The only reply of a call, to be awaited."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __await__(self) -> Any:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        try:
            reply = await self._call.read()
            if reply is not EOF:
                await self._call.read()  # the status
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        if reply is EOF:
            raise grpc.aio.AioRpcError(CODE.INTERNAL, None, None, "the call ended without a reply")
        return reply
