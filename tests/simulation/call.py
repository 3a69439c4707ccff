"""One gRPC call on the simulated network."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

import grpc

from tests.simulation.loop import VirtualLoop, present
from tests.simulation.network import UNHEARD_S, Network

if TYPE_CHECKING:
    from tests.simulation.server import Server

RETRY_S = 0.2
"""Seconds between attempts to connect of calls that wait for a server."""
TICK_S = 1e-6
"""Least time between two messages in one direction of a call: timers of the same moment have no order."""
CODE, EOF = grpc.StatusCode, grpc.aio.EOF


class Box:
    """Messages on their way to one reader, in order. The end is a message, too."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._messages: deque[Any] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, message: Any) -> None:
        self._messages.append(message)
        if self._reader and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> Any:
        while not self._messages:
            self._reader = self._loop.create_future()
            await self._reader
        return self._messages.popleft()


class Call:
    """One call: both of its ends, and what is on the way between them. It times out or breaks as a whole."""

    def __init__(self, network: Network, address: str, method: str, metadata: Any, write: Any, read: Any) -> None:
        self.client, self.served_by = present(), None
        self.method, self.metadata = method, metadata
        self.lasts = False
        """True for a stream in both directions."""
        self.over: list[Callable[[], None]] = []
        """Called when the client has the status."""
        self._network, self._loop, self._address = network, network.loop, address
        self._write, self._read = write or bytes, read or bytes
        self._to_server, self._to_client = Box(self._loop), Box(self._loop)
        self._arrival = {"up": 0.0, "down": 0.0}
        self._status: tuple[CODE, str, Any] | None = None
        self._known = self._loop.create_future()
        self._half_closed = False
        self._task: asyncio.Task[None] | None = None
        self._fate = ""
        self._timers: list[asyncio.TimerHandle] = []
        self._early: list[Callable[[], None]] = []
        """Messages that are there before the connection is."""
        self._told = ""
        """What the server was told: that the call has ended, and why."""

    # The client's side

    def begin(self, timeout_s: float | None, *, wait: bool) -> None:
        network = self._network
        network.calls[self] = None
        self.log("call")
        if network.weather.lost and network.chance.random() < network.weather.lost:
            self._fate = network.chance.choice(("request", "middle") if self.lasts else ("request", "reply", "middle"))
        if timeout_s is not None and timeout_s < math.inf:
            self._timers.append(self._loop.call_later(timeout_s, self._late))
        self._dial(wait)

    def _dial(self, wait: bool) -> None:
        network, server = self._network, self._network.servers.get(self._address)
        held_s = network.held_s(self.client, server.process if server else None)
        if server and server.serves and held_s <= UNHEARD_S:
            network.after(held_s + network.delay_s(), self._arrive, server)
        elif wait:
            self._timers.append(self._loop.call_later(RETRY_S, self._dial, wait))
        else:
            delay_s = UNHEARD_S if server and held_s > UNHEARD_S else network.delay_s()
            network.after(delay_s, self._end, CODE.UNAVAILABLE, "failed to connect to all addresses")

    def _arrive(self, server: Server) -> None:
        """The request's headers are there; from now on, both ends know of each other."""
        if self._status:
            return
        if not server.serves or self._fate == "request":
            self._end(CODE.UNAVAILABLE, "failed to connect to all addresses")
            return
        self.served_by = server.process
        server.process.later(0.0, lambda: self._serve(server))
        for put in self._early:
            server.process.later(0.0, put)
        if self._fate == "middle":
            self._network.after(4 * self._network.delay_s(), self.break_off, "Connection reset by peer")
        if not server.process.runs:
            self._network.after(UNHEARD_S, self._still_unheard)

    def _still_unheard(self) -> None:
        if self.served_by and not self.served_by.runs and self._task is None:
            self.break_off("keepalive watchdog timeout")

    def send_all(self, requests: Iterable[Any], *, may_repeat: bool = True) -> None:
        written = [self._write(request) for request in requests]
        for each in written:
            self._pass("up", each)
        self._pass("up", EOF)
        weather, network = self._network.weather, self._network
        if may_repeat and weather.twice and network.chance.random() < weather.twice:
            ghost = Call(network, self._address, self.method, self.metadata, None, None)
            ghost.client = self.client
            network.after(3 * network.delay_s(), ghost._haunt, written)

    def _haunt(self, written: list[bytes]) -> None:
        self.log("twice")
        self._network.calls[self] = None
        self._timers.append(self._loop.call_later(60.0, self._late))
        self._dial(False)
        for each in (*written, EOF):
            self._pass("up", each)

    async def write(self, request: Any) -> None:
        if self._status or self._half_closed:
            raise asyncio.InvalidStateError("the call has ended")
        self._pass("up", self._write(request))
        await asyncio.sleep(0)

    async def done_writing(self) -> None:
        if not self._status and not self._half_closed:
            self._half_closed = True
            self._pass("up", EOF)

    async def read(self) -> Any:
        """The next message, EOF after the last one; raises AioRpcError for a status that is not OK."""
        message = await self._to_client.get()
        if message is not EOF:
            return self._read(message)
        self._to_client.put(EOF)
        assert self._status
        code, details, trailer = self._status
        if code is CODE.OK:
            return EOF
        if self._told == "cancelled":
            raise asyncio.CancelledError
        raise grpc.aio.AioRpcError(code, None, trailer, details)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._each()

    async def _each(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not EOF:
            yield message

    async def code(self) -> CODE:
        return (await self._known)[0]

    async def details(self) -> str:
        return (await self._known)[1]

    async def trailing_metadata(self) -> Any:
        return (await self._known)[2]

    def done(self) -> bool:
        return self._status is not None

    def cancel(self) -> bool:
        if self._status:
            return False
        self._told = "cancelled"
        self._end(CODE.CANCELLED, "Locally cancelled by application!")
        return True

    def _late(self) -> None:
        self._end(CODE.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def break_off(self, why: str) -> None:
        """The connection has broken; both ends notice, each by itself."""
        self._end(CODE.UNAVAILABLE, why)

    def _end(self, code: CODE, details: str, trailer: Any = None) -> None:
        """The client has a status, which it may have set itself; the server hears of it."""
        if self._status:
            return
        self._status = (code, details, trailer)
        self._network.calls.pop(self, None)
        for timer in self._timers:
            timer.cancel()
        self.log("status", code.name)
        if self.client:
            self.client.later(0.0, self._tell)
        else:
            self._tell()
        if self._task and not self._task.done() and self.served_by:
            held_s = self._network.held_s(self.client, self.served_by)
            self.served_by.later(held_s + self._network.delay_s(), self._task.cancel)

    def _tell(self) -> None:
        for each in self.over:
            each()
        self._to_client.put(EOF)
        if not self._known.done():
            self._known.set_result(self._status)

    # What is on the way

    def _pass(self, way: str, message: Any) -> None:
        """Deliver a message after all earlier ones of this call and direction."""
        network = self._network
        held_s = network.held_s(self.client, self.served_by)
        at_s = max(self._arrival[way] + TICK_S, self._loop.time() + held_s + network.delay_s())
        self._arrival[way] = at_s
        reader = self.served_by if way == "up" else self.client
        box = self._to_server if way == "up" else self._to_client

        def put() -> None:
            if not (way == "down" and self._status):
                box.put(message)

        if reader:
            reader.later(at_s - self._loop.time(), put)
        elif way == "up":
            network.after(at_s - self._loop.time(), self._put_up, put)

    def _put_up(self, put: Callable[[], None]) -> None:
        if self.served_by:
            self.served_by.later(0.0, put)
        else:
            self._early.append(put)

    # The server's side

    def _serve(self, server: Server) -> None:
        if self._status and self._told != "cancelled":
            return
        self.log("serve")
        self._task = self._loop.create_task(self._handle(server))

    async def _handle(self, server: Server) -> None:
        context = Context(self)
        try:
            await server.handle(self, context)
            status = (CODE.OK, "", ())
        except grpc.aio.AbortError:
            status = context.status
        except asyncio.CancelledError:
            status = (CODE.CANCELLED, "the server cancelled the call", ())
        except Exception as error:  # noqa: BLE001  # as grpc.aio
            status = (CODE.UNKNOWN, f"Unexpected {type(error)}: {error}", ())
        self.log("served", status[0].name)
        if self._fate == "reply":
            status = (CODE.UNAVAILABLE, "Connection reset by peer", ())
        self._pass_status(status)

    def _pass_status(self, status: tuple[CODE, str, Any]) -> None:
        held_s = self._network.held_s(self.client, self.served_by)
        at_s = max(self._arrival["down"] + TICK_S, self._loop.time() + held_s + self._network.delay_s())
        self._task = None
        self._network.after(at_s - self._loop.time(), self._arrived, status)

    def _arrived(self, status: tuple[CODE, str, Any]) -> None:
        if self.client and not self.client.runs:
            self.client.later(0.0, lambda: self._end(*status))  # if it goes on
        else:
            self._end(*status)

    def answer(self, message: bytes) -> None:
        if self._fate != "reply":
            self._pass("down", message)

    async def request(self) -> Any:
        message = await self._to_server.get()
        if message is EOF:
            self._to_server.put(EOF)
        return message

    def log(self, what: str, *more: str) -> None:
        client, server = (each.name if each else "" for each in (self.client, self.served_by))
        self._network.log(what, self.method.rpartition("/")[2], client, server, *more)


class Context:
    """The server's view of a call, as `grpc.aio.ServicerContext`."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.serialize: Callable[[Any], bytes] = bytes
        self.status: tuple[CODE, str, Any] = (CODE.UNKNOWN, "", ())

    async def read(self) -> Any:
        return await self._call.request()

    async def write(self, message: Any) -> None:
        if not self._call.done():  # else the handler is about to be cancelled
            self._call.answer(self.serialize(message))
        await asyncio.sleep(0)

    async def abort(self, code: CODE, details: str = "", trailing_metadata: Any = ()) -> None:
        self.status = (code, details, trailing_metadata)
        raise grpc.aio.AbortError

    def invocation_metadata(self) -> Any:
        return self._call.metadata

    def add_done_callback(self, callback: Any) -> None:
        self._call.over.append(lambda: callback(self))
