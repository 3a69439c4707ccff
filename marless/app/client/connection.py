"""A connection to a coordinator, whose address is found if none is given, and whose restarts are waited for."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from marless.core import private_files, regular_files
from marless.core.errors import (
    MarlessError,
    NotFoundError,
    OverloadedError,
    UnauthenticatedError,
    UnavailableError,
    UnreachableError,
)
from marless.core.limits import MAX_SMALL_BYTES
from marless.core.private_files import UntrustedPathError
from marless.rpc.client import Peer
from marless.rpc.concurrency import delays, pause_s
from marless.rpc.errors import is_silent, is_untrusted
from marless.rpc.security import Security
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub

if TYPE_CHECKING:
    import grpc

    from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceAsyncStub

STACK_FILE = ".stack/stack.json"
"""Path, in the directory of the run folders, of the file in which `marless up` describes what it started."""
CALL_TIMEOUT_S = 15.0
Request = TypeVar("Request")
Response = TypeVar("Response")


def find_coordinator(coordinator: str | None = None, runs: Path | str | None = None) -> str:
    """The given address, else $MARLESS_COORDINATOR, else that of the stack that `marless up` started in `runs`.

    `runs` defaults to $MARLESS_RUNS, else "runs". Raises UnreachableError if no address is found, UnavailableError if
    the stack file or the socket that it names was created by another user, CorruptError if the stack file is no file.
    """
    if named := coordinator or os.environ.get("MARLESS_COORDINATOR"):
        return named
    stack = Path(runs or os.environ.get("MARLESS_RUNS") or "runs") / STACK_FILE
    try:
        private_files.check_way(stack)
        address = str(json.loads(regular_files.read(stack, MAX_SMALL_BYTES))["coordinator"])
        if address.startswith("unix:"):
            private_files.check_way(Path(address.removeprefix("unix:")))
        return address
    except UntrustedPathError as error:
        raise UnavailableError(
            f"{error.filename}: {error.strerror}, and may lead to a coordinator of theirs; name yours with "
            "--coordinator or $MARLESS_COORDINATOR"
        ) from None
    except (OSError, NotFoundError, ValueError, KeyError, TypeError, RecursionError):
        raise UnreachableError(
            f"no coordinator is known: {stack} is not there; start one with `marless up`, or name yours with "
            "--coordinator or $MARLESS_COORDINATOR"
        ) from None


class Connection:
    """Makes calls and streams that survive a restart of the coordinator. Every call must be idempotent."""

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
        """Call until there is an answer; raises the domain error of the answer, or UnreachableError."""
        return await self.repeat(lambda: self.peer.call(method, request, timeout_s=timeout_s))

    async def repeat(self, operation: Callable[[], Awaitable[Response]]) -> Response:
        """The result of an operation on `peer`; the operation is restarted whenever the coordinator becomes
        unavailable.
        """
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
        """Yield a server stream; if it breaks, continue it with a new `request`.

        A `lasting` stream should be ended only by its reader: if the server ends it, it counts as broken.
        """
        patience = _Patience(self, unavailable_s=self._patience_s)
        while True:
            try:
                async with aclosing(self.peer.stream(method, request())) as responses:
                    async for response in responses:
                        self._met = True
                        # Each message shows that it works again, so that time counts anew from the next failure.
                        patience = _Patience(self, unavailable_s=self._patience_s)
                        yield response
                if not lasting:
                    return
                raise UnreachableError("the stream has ended")
            except MarlessError as error:
                await patience.endure(error)

    async def close(self) -> None:
        """Close the connection."""
        await self.peer.close()

    def patience_s(self) -> float:
        """Seconds to wait for an unreachable coordinator: fewer if it has never answered, because it may not exist."""
        return self._patience_s if self._met else min(self._contact_s, self._patience_s)

    def sentence(self, error: MarlessError) -> MarlessError:
        """The error to raise to the user; the transport's own message is in `detail`."""
        address = self.peer.address
        if isinstance(error, UnauthenticatedError):
            return UnauthenticatedError(f"{address}: {error}")
        if not isinstance(error, UnreachableError):
            self._met = True
            return error
        if is_untrusted(error):
            return UnreachableError(f"coordinator at {address}: {str(error).partition(': ')[2]}")
        if self._met:
            sentence = (
                f"the coordinator at {address} has not answered for {self._patience_s:g} s; its jobs go on once "
                "`marless up` has started it again"
            )
        elif is_silent(error):
            sentence = (
                f"the coordinator at {address} takes connections and does not answer: its process is stopped, or "
                "hangs, or the machine is very busy; try again, or start it anew with `marless down` and `marless up`"
            )
        else:
            sentence = f"no coordinator at {address}: start one with `marless up`, or name yours with --coordinator"
        told = UnreachableError(sentence)
        told.detail = str(error)
        return told


class _Patience:
    """Limits the retries of one call by the time since its first failure."""

    def __init__(self, connection: Connection, *, unavailable_s: float) -> None:
        self._connection = connection
        self._unavailable_s = unavailable_s
        """Time limit if the coordinator answers that it is unavailable: stopping, overloaded, or its disk is full."""
        self._delays = delays()
        self._since_s: float | None = None

    async def endure(self, error: MarlessError) -> None:
        """Wait before the next attempt; raises the error for the user if no further attempt is to be made."""
        told = self._connection.sentence(error)
        if not isinstance(error, UnavailableError | OverloadedError):
            raise told from None
        patience_s = self._connection.patience_s() if isinstance(error, UnreachableError) else self._unavailable_s
        now_s, delay_s = time.monotonic(), pause_s(next(self._delays), error)
        self._since_s = now_s if self._since_s is None else self._since_s
        # A pause that would outlast the patience is not begun, so that the error is told in time.
        if now_s + delay_s > self._since_s + patience_s:
            raise told from None
        await asyncio.sleep(delay_s)
