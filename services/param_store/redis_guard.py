"""Ends a Redis whose store was killed: `python redis_guard.py HOME SOCKET GRACE_S`, as a child of the store.

A Redis outlives a store that was killed, so that the next store finds it with its data loaded. If no store follows
within the grace period, this process ends Redis, also if somebody has deleted its directory and its socket: the store
writes the process id of each Redis that it starts to the guard's standard input, whose end is the end of the store.
The guard imports only the standard library, to use little memory.
"""

import fcntl
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

ANSWER_S = 5.0
_PEER = struct.Struct("3i")
"""Linux's `struct ucred` of the process at the other end of a unix socket: its id, user and group."""


def main() -> None:
    """Wait for the store's end, then for the grace period, then end Redis unless another store has taken it over."""
    home, address, grace_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    told = (0, "")
    for line in sys.stdin:
        told = (int(line), _began(int(line)))
    for _ in range(grace_s):
        time.sleep(1)
        if not _running(address, told):
            return
    with suppress(FileNotFoundError):  # its directory was deleted: no store can take it over
        lock = os.open(home / "lock", os.O_RDONLY | os.O_NOFOLLOW)  # held until this process ends
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no store can adopt a Redis that is about to end
        except BlockingIOError:
            return  # another store has taken over, and has a guard of its own
    # End Redis as it ends itself, or, if it takes too long, at once: what it has acknowledged is on the disk.
    give_up_s = time.monotonic() + ANSWER_S
    while process := _running(address, told):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM if time.monotonic() < give_up_s else signal.SIGKILL)
        time.sleep(0.1)


def _running(address: str, told: tuple[int, str]) -> int:
    """The process id of Redis: of the one at the socket, else of the one that the store has told; 0 if it has ended."""
    with suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX) as line:  # AttributeError: not on Linux
        line.connect(address)
        if (process := int(_PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0])) > 0:
            return process
    process, began = told
    # Ids are used again: only with the same start is it the same process.
    return process if process and began and _began(process) == began else 0


def _began(process: int) -> str:
    """When a process began, as the kernel counts; "" if there is none, or it has ended and nobody has looked yet."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if state == b"Z" else fields[18].decode()


if __name__ == "__main__":
    main()
