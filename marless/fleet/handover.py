"""Authentication of workers: the ticket and token that a pool passes to a worker on its standard input.

Standard input is private. Command lines and environments are visible in /proc, and environments are also inherited by
processes that a job's code starts.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import sys
from dataclasses import asdict, dataclass, field
from typing import IO

from marless.core.errors import InternalError, UnauthenticatedError

_LINE_BYTES = 2**16


def new_ticket() -> str:
    """A random secret of 256 bits."""
    return secrets.token_urlsafe(32)


@dataclass
class Handover:
    """The secrets that a worker received from its pool, which may send a new token at any time."""

    ticket: str = field(default_factory=new_ticket, repr=False)
    """Proves to the pool that this is the worker that it launched. For a worker started otherwise, it is drawn by the
    worker and proves on reconnection that it is the same one."""
    token: str = field(default="", repr=False)
    """The token of the worker's role."""

    def to_line(self) -> bytes:
        """Encode as a line for the worker's standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"

    def take(self, line: bytes) -> None:
        """Update from a line written by `to_line`; raises InternalError for anything else."""
        try:
            told = json.loads(line)
            self.ticket, self.token = told["ticket"], told["token"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InternalError("standard input holds no line of a pool; only pools start workers this way") from None


class Handed:
    """Reads the pool's lines from this process's standard input."""

    def __init__(self, lines: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self._lines = lines
        self._transport = transport

    async def into(self, handover: Handover) -> bool:
        """Wait for the next line and store it in `handover`; returns False at the end of input: the pool is gone."""
        line = await self._lines.readline()
        if line:
            handover.take(line)
        return bool(line)

    def close(self) -> None:
        """Stop reading."""
        self._transport.close()


async def listen() -> Handed:
    """Start reading the pool's lines. From now on, other readers of standard input, such as children, find it empty."""
    lines = asyncio.StreamReader(limit=_LINE_BYTES)
    pipe = _own_standard_input()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    return Handed(lines, transport)


def _own_standard_input() -> IO[bytes]:
    """Move standard input to another descriptor, which children do not inherit; /dev/null takes its place."""
    number = sys.stdin.fileno()
    own = os.fdopen(os.dup(number), "rb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, number)
    os.close(nothing)
    return own


class Tickets:
    """Decides which workers may attach to a pool, and under which names.

    A worker that the pool launched must present the ticket that it received. Other workers are admitted only with
    `others`, which is for pools that check tokens: under an unused name, which is theirs while they are connected.
    """

    def __init__(self, *, others: bool = False) -> None:
        self.others = others
        """True if workers are admitted that the pool has not launched."""
        self._issued: dict[str, str] = {}

    def issue(self, worker: str) -> str:
        """Create a ticket for the worker about to be launched under this name; invalidates earlier ones."""
        self._issued[worker] = new_ticket()
        return self._issued[worker]

    def void(self, worker: str) -> None:
        """Invalidate the ticket of a worker whose process is gone."""
        self._issued.pop(worker, None)

    def check(self, worker: str, shown: str, connected: str | None) -> None:
        """Raise UnauthenticatedError unless the ticket `shown` permits the use of this worker's name.

        `connected` is the ticket of the worker that is connected under the name, if there is one.
        """
        # What was issued comes first: a worker that the pool launches takes its name from any other.
        expected = self._issued.get(worker, connected)
        if expected is None and self.others and shown:
            return
        if expected is None or not hmac.compare_digest(shown.encode(), expected.encode()):
            raise UnauthenticatedError(
                f"worker {worker[:100]!r} does not show the ticket of that name; a pool admits the workers that it "
                "launches, and with --tokens also others, under names that are free"
            )
