"""The servers' side of gRPC without sockets: servers with the interface of `grpc.aio.Server`, see `channel`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.simulation.call import CODE, EOF, Call, Context
from tests.simulation.loop import Process, present
from tests.simulation.network import Network


@dataclass(frozen=True)
class _Details:
    method: str
    invocation_metadata: Any


class Server:
    """The servers' side, as `grpc.aio.Server`."""

    def __init__(
        self,
        network: Network,
        interceptors: Iterable[Any] = (),
        options: Any = None,
        maximum_concurrent_rpcs: int | None = None,
    ) -> None:
        process = present()
        assert process is not None
        self.process: Process = process
        self._network = network
        self._interceptors = tuple(interceptors)
        self._methods: dict[str, Any] = {}
        self._generic: list[Any] = []
        self._address = ""
        self._started = False

    @property
    def serves(self) -> bool:
        return self._started and self.process.alive

    def add_insecure_port(self, address: str) -> int:
        self._address = address
        return 1

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self._methods.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    async def start(self) -> None:
        self._started = True
        self._network.listen(self._address, self)

    async def stop(self, grace: float | None) -> None:
        self._started = False
        for call in [call for call in self._network.calls if call.served_by is self.process]:
            call.break_off("the server is stopping")

    async def handle(self, call: Call, context: Context) -> None:
        details = _Details(call.method, call.metadata)
        handler = await self._find(details, self._interceptors)
        if handler is None:
            await context.abort(CODE.UNIMPLEMENTED, "Method not found!")
        context.serialize = handler.response_serializer or bytes
        read = handler.request_deserializer or bytes
        if handler.request_streaming:
            request: Any = _requests(call, read)
        else:
            request = read(await call.request())
        method = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        answer = method(request, context)
        if hasattr(answer, "__aiter__"):
            async for each in answer:
                await context.write(each)
        elif (reply := await answer) is not None and not handler.response_streaming:
            call.answer(context.serialize(reply))

    async def _find(self, details: _Details, interceptors: tuple[Any, ...]) -> Any:
        if interceptors:
            first, *rest = interceptors
            found: Awaitable[Any] = first.intercept_service(lambda given: self._find(given, tuple(rest)), details)
            return await found
        if details.method in self._methods:
            return self._methods[details.method]
        return next((found for each in self._generic if (found := each.service(details))), None)


async def _requests(call: Call, read: Callable[[bytes], Any]) -> AsyncIterator[Any]:
    while (message := await call.request()) is not EOF:
        yield read(message)
