"""A proxy between two parts of the system that can be told to misbehave like a network, at any moment.

It models TCP: what was sent on a connection that survives arrives in the end, in order. So a blackhole holds bytes
back until it is lifted, and only a reset or a cut loses any.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

PIECE_BYTES = 2**16
UP, DOWN = "up", "down"
"""From the caller to the callee, and back."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What befalls every connection from now on."""

    delay_s: float = 0.0
    """Each piece of at most 64 KiB comes this much later."""
    bytes_per_s: float = 0.0
    """Throughput of each direction of each connection; 0: as fast as it goes."""
    cut_after_bytes: int = 0
    """Reset a connection once it has carried so many bytes, both ways together; 0: never."""
    hold: frozenset[str] = frozenset()
    """Directions in which nothing arrives, until that ends: a blackhole."""


HEALTHY = Behaviour()
BLACKHOLE = Behaviour(hold=frozenset({UP, DOWN}))


@dataclass(eq=False)
class _Connection:
    writers: list[asyncio.StreamWriter]
    carried_bytes: int = 0

    def reset(self) -> None:
        """End it as a crashed host would: no farewell, and what is under way is lost."""
        for writer in self.writers:
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    end = writer.get_extra_info("socket")
    if end.fileno() >= 0 and end.family != socket.AF_UNIX:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Proxy:
    """An async context manager: connections to `address` are relayed to `target`, both "unix:PATH" or "host:port"."""

    def __init__(self, target: str, listen: str = "127.0.0.1:0") -> None:
        self._target = target
        self._listen = listen
        self._behaviour = HEALTHY
        self._changed = asyncio.Condition()
        self._connections: set[_Connection] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = listen
        self.resets = 0
        """Connections that were reset or cut."""

    async def __aenter__(self) -> Proxy:
        if self._listen.startswith("unix:"):
            self._server = await asyncio.start_unix_server(self._accept, self._listen.removeprefix("unix:"))
        else:
            host, _, port = self._listen.rpartition(":")
            self._server = await asyncio.start_server(self._accept, host, int(port))
            self.address = f"{host}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    @property
    def connections(self) -> int:
        """Connections that are relayed now."""
        return len(self._connections)

    async def behave(self, behaviour: Behaviour) -> None:
        """Treat all connections, present and future, like this from now on."""
        async with self._changed:
            self._behaviour = behaviour
            self._changed.notify_all()

    def reset(self) -> None:
        """Reset all present connections; new ones are welcome."""
        self.resets += len(self._connections)
        for connection in self._connections:
            connection.reset()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passable(UP)  # in a blackhole, not even a connection is made
        try:
            back_reader, back_writer = await self._dial()
        except OSError:
            _reset(writer)
            return
        connection = _Connection([writer, back_writer])
        self._connections.add(connection)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(connection, UP, reader, back_writer))
                group.create_task(self._pump(connection, DOWN, back_reader, writer))
        finally:
            self._connections.discard(connection)
            for each in connection.writers:
                each.close()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith("unix:"):
            return await asyncio.open_unix_connection(self._target.removeprefix("unix:"))
        host, _, port = self._target.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pump(
        self, connection: _Connection, direction: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        try:
            while piece := await source.read(PIECE_BYTES):
                await self._slow_down(direction, len(piece))
                if not await self._pass_on(connection, piece, sink):
                    return
            sink.write_eof()
        except OSError:
            connection.reset()

    async def _slow_down(self, direction: str, size_bytes: int) -> None:
        await self._passable(direction)
        behaviour = self._behaviour
        pause_s = behaviour.delay_s + (size_bytes / behaviour.bytes_per_s if behaviour.bytes_per_s else 0.0)
        if pause_s:
            await asyncio.sleep(pause_s)
            await self._passable(direction)

    async def _pass_on(self, connection: _Connection, piece: bytes, sink: asyncio.StreamWriter) -> bool:
        """False if that was the end of the connection."""
        limit = self._behaviour.cut_after_bytes
        room = limit - connection.carried_bytes if limit else len(piece)
        sink.write(piece[: max(room, 0)])
        connection.carried_bytes += len(piece)
        await sink.drain()
        if room >= len(piece):
            return True
        self.resets += 1
        connection.reset()
        return False

    async def _passable(self, direction: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: direction not in self._behaviour.hold)


Disturbance = Callable[[Proxy, random.Random], Awaitable[None]]


async def resetting(proxy: Proxy, rng: random.Random) -> None:
    """Reset everything once."""
    proxy.reset()


async def cutting(proxy: Proxy, rng: random.Random) -> None:
    """For a while, let no connection carry more than a little."""
    await _for_a_while(proxy, rng, Behaviour(cut_after_bytes=rng.randrange(1, 20_000)))


async def delaying(proxy: Proxy, rng: random.Random) -> None:
    """For a while, be late."""
    await _for_a_while(proxy, rng, Behaviour(delay_s=rng.uniform(0.001, 0.02)))


async def swallowing(proxy: Proxy, rng: random.Random) -> None:
    """For a while, let nothing pass, in one direction or in both; then reset, so that what was held is lost."""
    hold = rng.choice([{UP}, {DOWN}, {UP, DOWN}])
    await _for_a_while(proxy, rng, Behaviour(hold=frozenset(hold)), reset=True)


async def _for_a_while(proxy: Proxy, rng: random.Random, behaviour: Behaviour, *, reset: bool = False) -> None:
    await proxy.behave(behaviour)
    try:
        await asyncio.sleep(rng.uniform(0.02, 0.15))
        if reset:
            proxy.reset()
    finally:
        await proxy.behave(HEALTHY)


async def disturb(
    proxy: Proxy,
    rng: random.Random,
    *,
    every_s: float,
    how: Sequence[Disturbance] = (resetting, cutting, delaying, swallowing),
) -> None:
    """Do one of these things to the proxy at random moments, `every_s` apart on average, until cancelled."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / every_s))
        await rng.choice(how)(proxy, rng)
