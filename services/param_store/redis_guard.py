"""Ends a Redis that has lost its store: `python redis_guard.py HOME SOCKET GRACE_S`, as a child of the store.

A Redis outlives a store that was killed, so that the next one finds it warm. If there is no next one, because all
that would have started it was killed as well, nobody would ever end it: this process does, after a grace. Only the
standard library, and none of marless, so that it is small.
"""

import fcntl
import os
import socket
import sys
import time
from pathlib import Path


def main() -> None:
    """Wait for the store's end, then for somebody to take over, then end Redis."""
    home, address, grace_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sys.stdin.read()
    for _ in range(grace_s):
        time.sleep(1)
        if not _answers(address):
            return
    with os.fdopen(os.open(home / "lock", os.O_RDONLY | os.O_NOFOLLOW)) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no store adopts what is about to end
        except BlockingIOError:
            return  # another store has taken over, and has a guard of its own
        _shut_down(address)


def _answers(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        return line.connect_ex(address) == 0


def _shut_down(address: str) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        if line.connect_ex(address) == 0:
            line.sendall(b"SHUTDOWN NOSAVE\r\n")
            line.recv(1)  # ends with the connection


if __name__ == "__main__":
    main()
