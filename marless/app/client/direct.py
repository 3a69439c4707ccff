"""A client of a coordinator in this process: its servicer's methods are called, and nothing is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from functools import cached_property
from typing import Any

from marless.app.client.asynchronous import AsyncClient
from marless.app.client.connection import CALL_TIMEOUT_S, Connection
from marless.rpc import chunks

ADDRESS = "this process"


class _DirectPeer:
    """Where bulk data goes."""

    def __init__(self, servicer: Any) -> None:  # Any: as `DirectConnection` has it
        self._servicer = servicer
        self.address = ADDRESS

    async def send(
        self, name: str, header: Any, blobs: Sequence[bytes | memoryview], _kind: object, **_: object
    ) -> Any:
        """Give bulk data to a method such as "CoordinatorService/UploadCheckpoint" in frames."""

        async def frames() -> AsyncIterator[bytes]:
            for frame in chunks.frames(header, blobs):
                yield frame

        return await getattr(self._servicer, name.partition("/")[2])(frames(), None)


class DirectConnection(Connection):
    """Calls the methods of a servicer. Nothing is retried: what it raises is the answer.

    Args:
        servicer: Any object with the methods of CoordinatorService; no import leads from here to the services.
    """

    def __init__(self, servicer: Any) -> None:  # Any: see above
        self.stub = servicer
        self.peer = _DirectPeer(servicer)  # type: ignore[assignment]  # what is used of it

    async def call(self, method: Any, request: Any, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """The answer of a method."""
        return await method(request, None)

    async def repeat(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        """The result of an operation on `peer`."""
        return await operation()

    async def stream(
        self, method: Any, request: Callable[[], Any], *, lasting: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Yield what a method yields."""
        async for response in method(request(), None):
            yield response

    async def close(self) -> None:
        """Nothing is open."""


class DirectClient(AsyncClient):
    """A client of the coordinator in this process; the arguments are those of `DirectConnection`."""

    def __init__(self, servicer: Any) -> None:  # Any: as `DirectConnection` has it
        super().__init__(ADDRESS, token="", tls_ca="")
        self._servicer = servicer

    @cached_property
    def _connection(self) -> Connection:
        return DirectConnection(self._servicer)
