"""A network without sockets, on virtual time: what is on its way, and what breaks it.

As over HTTP/2, messages of one call stay in order, and calls overtake one another. What a broken connection does to a
call is drawn from the seed: the request is lost, the reply is lost, or the call breaks off while it is served. A
duplicate is a second call with the same request, whose reply nobody hears.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marless.core.errors import SpecError
from tests.simulation.loop import Process, VirtualLoop, nobody

if TYPE_CHECKING:
    from tests.simulation.call import Call
    from tests.simulation.server import Server

UNHEARD_S = 7.0
"""Seconds until a connection to a process that does not answer is given up, see `marless.rpc.client.KEEPALIVE`."""
Log = Callable[..., None]


@dataclass
class Weather:
    """How bad the network is now."""

    delay_s: float = 0.001
    """Mean delay of a message; each is drawn anew."""
    lost: float = 0.0
    """Probability that a call breaks."""
    twice: float = 0.0
    """Probability that a call with one reply is made twice."""
    slow: float = 0.0
    """Probability that a thread is slow."""


class Network:
    """All servers by address, and all open calls."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, log: Log) -> None:
        self.loop = loop
        self.chance = chance
        self.log = log
        self.weather = Weather()
        self.servers: dict[str, Server] = {}
        self.calls: dict[Call, None] = {}
        self._nobody = nobody()
        self.cut: dict[frozenset[str], float] = {}
        """Kinds of processes between which nothing arrives until that time."""

    def delay_s(self) -> float:
        return self.chance.expovariate(1.0 / self.weather.delay_s)

    def after(self, delay_s: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        """Call back whatever becomes of the process that runs now: what is on its way is out of its hands."""
        return self.loop.call_later(delay_s, callback, *args, context=self._nobody)

    def held_s(self, first: Process | None, second: Process | None) -> float:
        """Seconds until a message between these processes can pass."""
        if first is None or second is None or not self.cut:
            return 0.0
        return max(0.0, self.cut.get(frozenset((kind(first), kind(second))), 0.0) - self.loop.time())

    def listen(self, address: str, server: Server) -> None:
        """Let a server take an address, unless one that was started after it has it."""
        present = self.servers.get(address)
        if present and present.serves and number_of(present.process) > number_of(server.process):
            raise SpecError(f"cannot listen on {address}: it is in use")
        self.servers[address] = server
        server.process.ended.append(lambda: self.gone(server.process))

    def gone(self, process: Process) -> None:
        """Break the calls of a dead process, after the moment that its kernel needs to tell the others."""
        for call in [call for call in self.calls if process in (call.client, call.served_by)]:
            self.after(self.delay_s(), call.break_off, "the other process has ended")

    def unheard(self, process: Process) -> None:
        """Break the calls of a process that has not answered for too long."""
        for call in [call for call in self.calls if process in (call.client, call.served_by)]:
            call.break_off("keepalive watchdog timeout")

    def reset(self, first: str, second: str) -> None:
        """Break all calls between two kinds of processes now."""
        wanted = {first, second}
        for call in list(self.calls):
            if {kind(call.client), kind(call.served_by)} == wanted:
                call.break_off("Connection reset by peer")


def kind(process: Process | None) -> str:
    """The kind of a process: its name without its number."""
    return process.name.partition("-")[0] if process else ""


def number_of(process: Process) -> int:
    """The number of a process; later ones have higher numbers."""
    return int(process.name.partition("-")[2])
