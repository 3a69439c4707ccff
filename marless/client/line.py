"""The line to a coordinator: what is lost on it is asked for again, unseen, for as long as patience lasts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from marless.errors import MarlessError, OverloadedError, UnauthenticatedError, UnavailableError, UnreachableError
from marless.rpc.client import Peer
from marless.rpc.retry import delays, pause_s
from marless.rpc.security import Security
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub

if TYPE_CHECKING:
    import grpc

    from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub

CALL_TIMEOUT_S = 15.0
Request = TypeVar("Request")
Response = TypeVar("Response")


class Line:
    """Calls and streams that outlive a coordinator's restart. Every call made here must be safe to repeat."""

    def __init__(self, address: str, security: Security, *, contact_s: float, patience_s: float) -> None:
        self.peer = Peer(address, security)
        self.stub: CoordinatorServiceAsyncStub = CoordinatorServiceStub(self.peer.channel)
        self._contact_s = contact_s
        self._patience_s = patience_s
        self._met = False

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[Request, Response],
        request: Request,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Response:
        """Call until there is an answer; raises the domain error that it holds, or UnreachableError."""
        return await self.repeat(lambda: self.peer.call(method, request, timeout_s=timeout_s))

    async def repeat(self, operation: Callable[[], Awaitable[Response]]) -> Response:
        """The result of an operation on this line's peer; it is begun anew whenever the coordinator is lost in it."""
        patience = _Patience(self, unavailable_s=self._contact_s)
        while True:
            try:
                answer = await operation()
            except MarlessError as error:
                await patience.endure(error)
            else:
                self._met = True
                return answer

    async def stream(
        self,
        method: grpc.aio.UnaryStreamMultiCallable[Request, Response],
        request: Callable[[], Request],
        *,
        lasting: bool = False,
    ) -> AsyncGenerator[Response, None]:
        """What a server streams; where it is cut off, it goes on with a new `request`.

        A `lasting` stream is one that only its reader ends: when the server does, it is cut off.
        """
        patience = _Patience(self, unavailable_s=self._patience_s)
        while True:
            try:
                async with aclosing(self.peer.stream(method, request())) as responses:
                    async for response in responses:
                        self._met = True
                        patience = _Patience(self, unavailable_s=self._patience_s)
                        yield response
                if not lasting:
                    return
                raise UnreachableError("the stream has ended")
            except MarlessError as error:
                await patience.endure(error)

    async def close(self) -> None:
        """Hang up."""
        await self.peer.close()

    def patience_s(self) -> float:
        """A coordinator that has answered before will come back; one that never did may not exist."""
        return self._patience_s if self._met else min(self._contact_s, self._patience_s)

    def sentence(self, error: MarlessError) -> MarlessError:
        """What a user is told; the transport's own words are in `detail`."""
        address = self.peer.address
        if isinstance(error, UnauthenticatedError):
            return UnauthenticatedError(f"{address}: {error}")
        if not isinstance(error, UnreachableError):
            self._met = True
            return error
        told = UnreachableError(
            f"the coordinator at {address} has not answered for {self._patience_s:g} s; its jobs go on once "
            "`marless up` has started it again"
            if self._met
            else f"no coordinator at {address}: start one with `marless up`, or name yours with --coordinator"
        )
        told.detail = str(error)
        return told


class _Patience:
    """Counts from the first failure of one call."""

    def __init__(self, line: Line, *, unavailable_s: float) -> None:
        self._line = line
        self._unavailable_s = unavailable_s
        """For a coordinator that answers, and says that it cannot: it stops, is busy, or its disk is full."""
        self._delays = delays(random.Random())  # unseeded: clients must not come back in step
        self._since_s: float | None = None

    async def endure(self, error: MarlessError) -> None:
        """Wait until it is worth trying again; raises what the user is told if it is not."""
        told = self._line.sentence(error)
        if not isinstance(error, UnavailableError | OverloadedError):
            raise told from None
        patience_s = self._line.patience_s() if isinstance(error, UnreachableError) else self._unavailable_s
        now_s, delay_s = time.monotonic(), pause_s(next(self._delays), error)
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s + delay_s > self._since_s + patience_s:
            raise told from None
        await asyncio.sleep(delay_s)
