"""What a pool hands to a worker that it launches, by the worker's standard input, and who may attach as a worker.

Standard input is seen by nobody else: command lines and environments are shown by the system, and environments are
inherited by whatever the code of a job starts.
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

from marless.errors import InternalError, UnauthenticatedError

_LINE_BYTES = 2**16


def new_ticket() -> str:
    """A word that nobody can guess."""
    return secrets.token_urlsafe(32)


@dataclass
class Handover:
    """What a worker was handed. Its pool may hand it another token at any time."""

    ticket: str = field(default_factory=new_ticket, repr=False)
    """Proves to the pool that this is the worker that it launched; of a worker that somebody else started, that it is
    the same as before."""
    token: str = field(default="", repr=False)
    """Of the worker's role."""

    def to_line(self) -> bytes:
        """For the standard input of a worker."""
        return json.dumps(asdict(self)).encode() + b"\n"

    def take(self, line: bytes) -> None:
        """Become what `to_line` wrote; raises InternalError for anything else."""
        try:
            told = json.loads(line)
            self.ticket, self.token = told["ticket"], told["token"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InternalError("standard input holds no line of a pool; only pools start workers this way") from None


class Handed:
    """The lines of a pool on this process's standard input."""

    def __init__(self, lines: asyncio.StreamReader, transport: asyncio.ReadTransport) -> None:
        self._lines = lines
        self._transport = transport

    async def into(self, handover: Handover) -> bool:
        """Wait for the next line and take it; False if there is none, because the pool is gone."""
        line = await self._lines.readline()
        if line:
            handover.take(line)
        return bool(line)

    def close(self) -> None:
        """Hear no more."""
        self._transport.close()


async def listen() -> Handed:
    """Hear what the pool writes. Nobody else can: what reads standard input from now on finds it empty."""
    lines = asyncio.StreamReader(limit=_LINE_BYTES)
    pipe = _own_standard_input()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), pipe)
    return Handed(lines, transport)


def _own_standard_input() -> IO[bytes]:
    """Standard input under another number, which processes that are started here do not inherit."""
    number = sys.stdin.fileno()
    own = os.fdopen(os.dup(number), "rb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, number)
    os.close(nothing)
    return own


class Tickets:
    """Who may attach to a pool as a worker, and under which name.

    A worker that the pool launches shows the ticket that it was handed. Others are admitted only if `others` says so,
    which is for pools that check tokens: under a name of their own, and while they are connected nobody else has it.
    """

    def __init__(self, *, others: bool = False) -> None:
        self._others = others
        self._issued: dict[str, str] = {}

    def issue(self, worker: str) -> str:
        """A ticket for the worker that is about to be launched under this name; no earlier one is good any more."""
        self._issued[worker] = new_ticket()
        return self._issued[worker]

    def void(self, worker: str) -> None:
        """The process that had this name is gone."""
        self._issued.pop(worker, None)

    def check(self, worker: str, shown: str, connected: str | None) -> None:
        """Raise UnauthenticatedError unless who shows this ticket may be this worker.

        `connected` is the ticket of who has the name now, if anyone does.
        """
        expected = self._issued.get(worker, connected)
        if expected is None and self._others and shown:
            return
        if expected is None or not hmac.compare_digest(shown.encode(), expected.encode()):
            raise UnauthenticatedError(
                f"worker {worker[:100]!r} does not show the ticket of that name; a pool admits the workers that it "
                "launches, and with --tokens also others, under names that are free"
            )
